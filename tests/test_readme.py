"""Check the results that the README quotes from a published run."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"[\d.,]*\d(?:×| of(?: the)? \d+| GB| m?s\b)")


def test_every_result_it_quotes_is_in_the_report_it_links():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    [(report, results)] = re.findall(r"^\[The H200 report\]\((.*?)\)(.*?)^Use it if", text, re.DOTALL | re.MULTILINE)
    page = (ROOT / report).read_text(encoding="utf-8").splitlines()
    numbers_by_result = [NUMBER.findall(result) for result in results.split("\n- ")[1:]]
    assert [len(numbers) >= 2 for numbers in numbers_by_result] == [True] * 3
    assert [
        numbers for numbers in numbers_by_result if not any(all(each in line for each in numbers) for line in page)
    ] == []
