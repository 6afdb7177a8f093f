"""What the README quotes of a published run."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"[\d.,]*\d(?:×| of(?: the)? \d+| GB| m?s\b)")


def test_its_results_stand_in_the_report_that_it_names():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    [(report, results)] = re.findall(r"^\[The H200 report\]\((.*?)\)(.*?)^Use it if", text, re.DOTALL | re.MULTILINE)
    page = (ROOT / report).read_text(encoding="utf-8").splitlines()
    quoted = [NUMBER.findall(result) for result in results.split("\n- ")[1:]]
    assert [len(numbers) >= 2 for numbers in quoted] == [True] * 3
    assert [numbers for numbers in quoted if not any(all(each in line for each in numbers) for line in page)] == []
