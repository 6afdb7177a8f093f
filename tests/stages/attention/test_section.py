import re

import numpy as np
import pandas as pd
import pytest

from pipeline.attention.accounting import Shape, peak_bytes
from pipeline.report.section import FORMS
from pipeline.stages.attention import findings, others, section, selection
from pipeline.stages.attention.cell import Cell

ALL = ("h200", "laptop", "smoke")
FIGURES = {
    "h200": {"times", "compiled", "memory"},
    "laptop": {"times", "compiled", "memory"},
    "smoke": {"times", "memory"},
}


@pytest.fixture(scope="module")
def rendered(make_rows, tmp_path_factory):
    """Render each machine's section once: its rows, its text and its folder of figures."""
    found = {}
    for name in ALL:
        rows, folder = make_rows(name), tmp_path_factory.mktemp(name)
        found[name] = (rows, section.build(rows, folder), folder)
    return found


def prose(text):
    lines = [line for line in text.splitlines() if not line.startswith(("|", "<", "!", "#"))]
    return "\n".join(lines)


@pytest.mark.parametrize("name", ALL)
def test_the_section_holds_no_gap_in_its_words(rendered, name):
    _, text, _ = rendered[name]
    assert not re.search(r"\bnan\b|\bNone\b|\n{3,}| \n|\(\)", text)


@pytest.mark.parametrize("name", ALL)
def test_every_figure_drawn_is_linked_and_every_link_is_drawn(rendered, name):
    _, text, folder = rendered[name]
    assert set(re.findall(r"\(figures/attention/(\w+)\.svg\)", text)) == FIGURES[name]
    assert {path.stem for path in folder.iterdir()} == FIGURES[name]


def test_the_template_has_no_number_of_its_own():
    words = re.sub(r"\{\{.*?\}\}|\{%.*?%\}", "", section.TEMPLATE.read_text(), flags=re.DOTALL)
    assert re.findall(r"\b\d[\d.]*", words) == []


@pytest.mark.parametrize("name", ALL)
def test_every_number_of_the_prose_is_one_that_a_finding_derived(rendered, name):
    rows, text, _ = rendered[name]
    rows = selection.ordered(rows)
    whole = (findings.setting, findings.growth, findings.memory_end, findings.worked_example, findings.allocated)
    derived = [find(rows) for find in (*whole, findings.compilation, others.ran_out)]
    derived += [findings.saved(rows, mode) for mode in ("eager", "compiled")]
    written = {form(value) for value in _numbers_in(derived) for form in (*FORMS.values(), str)}
    names = r"[Ww]rite-up \d+.*?:|torch [\d.+a-z]+|NVIDIA H200|head_dim \d+"
    sentences = re.sub(names, "", prose(re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)))
    numbers = re.findall(r"\b\d+(?:,\d{3})*(?:\.\d+)?(?:×|%| ms| s\b| [GMk]B)?", sentences)
    assert numbers
    assert set(numbers) <= written


def _numbers_in(found):
    """Walk through dicts, lists and Series to their finite numbers."""
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, list | pd.Series):
        return [number for item in found for number in _numbers_in(item)]
    return [found] if isinstance(found, int | float | np.number) and np.isfinite(found) else []


def test_out_of_memory_shows_as_such_and_is_worked_out(rendered):
    rows, text, _ = rendered["h200"]
    assert re.search(r"\| +64 \| +65536 \| +OOM \| +OOM \| +– \| +– \|", text)
    assert "Eager attention ran out of memory at length 65536" in text
    example = findings.worked_example(selection.ordered(rows))
    assert (example["seen"], example["seq_len"], example["head_dim"]) == (True, 65536, 64)
    assert sum(example["lines"].values()) == example["peak_bytes"] == peak_bytes(Shape(8, 1, 65536, 64, False), 4)


def test_where_nothing_runs_out_the_worked_example_is_the_first_power_of_two_that_would(rendered):
    rows, text, _ = rendered["laptop"]
    example = findings.worked_example(selection.ordered(rows))
    assert not example["seen"]
    assert (
        example["peak_bytes"]
        > example["memory_bytes"]
        >= peak_bytes(Shape(8, 1, example["seq_len"] // 2, 64, False), 4)
    )
    assert "Nothing ran out of memory" in text


def test_the_fit_finds_one_matrix_where_one_is_saved_and_two_where_two_are(make_rows):
    rows = make_rows("h200")
    assert findings.saved(rows, "eager")["agrees"]
    rows["saved_bytes"] += 8 * 4 * rows["seq_len"] ** 2
    found = findings.saved(rows, "eager")
    assert not found["agrees"]
    assert found["matrices"] == pytest.approx(2, rel=0.01)


def test_a_prediction_that_was_not_seen_is_said_to_disagree(make_rows, tmp_path):
    rows = make_rows("h200")
    assert findings.memory_end(rows)["agree"]
    rows["memory_bytes"] = 20e9
    assert not findings.memory_end(rows)["agree"]


@pytest.mark.parametrize(("factor", "word"), [(0.2, "faster than"), (1, "as fast as"), (5, "slower than")])
def test_the_word_on_compiling_follows_the_times(make_rows, factor, word):
    rows = make_rows("laptop")
    times = [name for name in rows if name.endswith("_ms") and name != "samples_ms"]
    eager = rows[rows["mode"] == "eager"]
    rows.loc[rows["mode"] == "compiled", times] = eager[times].to_numpy() * factor
    for entry in findings.compilation(rows):
        assert entry["mean_word"] == word
        assert list(entry["by_word"]) == [word]


def test_without_a_compiler_nothing_is_said_of_compiling_but_why(rendered):
    _, text, _ = rendered["smoke"]
    head, missing = text.split("### What was not measured, or not well")
    assert "torch_compile" not in head
    assert "C++ compiler" in missing


def test_where_everything_is_skipped_one_line_says_so(make_rows, tmp_path):
    keys = pd.DataFrame(Cell().row_keys())
    first = make_rows("smoke").iloc[:1].drop(columns=["mode", "pass", "clock"])
    rows = keys.merge(first, how="cross").assign(status="skipped", reason="needs 1 GPU, 0 present")
    text = section.build(rows, tmp_path)
    assert "No attention pass could be timed" in text
    assert "needs 1 GPU, 0 present" in text


def test_others_figures_stand_beside_ours_with_their_doubts(rendered):
    _, text, _ = rendered["h200"]
    figures = text.split("### Others' figures")[1]
    assert "launch time only, not synchronised" in figures
    assert re.search(r"write-up 4 .*ran out of memory at length 16384; ours did not\.", figures)
