import re

import pandas as pd
import pytest

from pipeline.formulas.attention import Shape, peak_bytes
from pipeline.report.section import data_size
from pipeline.stages.attention.cell import Cell
from pipeline.stages.attention.report import findings, section, selection
from pipeline.stages.attention.report.selection import Memory

from ..sections import (
    drawn_figures,
    faults_of_parts,
    gaps,
    linked_figures,
    numbers_that_stay,
    render,
    template_numbers,
    unnamed_rows,
)

ALL = ("h200", "laptop", "smoke")
FIGURES = {
    "h200": {"times", "compiled", "memory"},
    "laptop": {"times", "compiled", "memory"},
    "smoke": {"times", "memory"},
}


@pytest.fixture(scope="module")
def rendered(make_rows, tmp_path_factory):
    return render(section.build, {name: make_rows(name) for name in ALL}, tmp_path_factory)


@pytest.mark.parametrize("name", ALL)
def test_the_section_holds_no_gap_in_its_words(rendered, name):
    _, text, _ = rendered[name]
    assert gaps(text) == []


@pytest.mark.parametrize("name", ALL)
def test_every_figure_drawn_is_linked_and_every_link_is_drawn(rendered, name):
    _, text, folder = rendered[name]
    assert linked_figures(text, "attention") == FIGURES[name]
    assert drawn_figures(folder) == FIGURES[name]


def test_the_template_has_no_number_of_its_own():
    assert template_numbers(section.TEMPLATE) == []


def test_the_section_of_a_part_of_the_cells_is_whole(make_rows, tmp_path_factory):
    assert faults_of_parts(section.build, "attention", make_rows("h200"), tmp_path_factory) == {}


@pytest.mark.parametrize("name", ALL)
def test_the_columns_of_rows_tell_the_rows_of_a_cell_apart(make_rows, name):
    assert unnamed_rows("attention", make_rows(name)).empty


@pytest.mark.parametrize("name", ["h200", "laptop"])
def test_no_number_of_the_prose_stays_when_every_figure_is_another(make_rows, monkeypatch, name):
    # Quartiles no longer enclose medians when all are changed, and cannot be drawn.
    monkeypatch.setattr(section, "draw_all", lambda *_: dict.fromkeys(["times", "compiled", "memory"], "link"))
    keys = ["head_dim", "seq_len", "mode", "phase", "setting_batch_size", "setting_warmup_passes"]
    rows = make_rows(name)
    measured_here = lambda found: section.build(found, None).split("### Others' figures")[0]  # noqa: E731
    # What follows from the shape alone, by formula.
    example = findings.worked_example(selection.ordered(rows), selection.memory_of(rows))
    sizes = [data_size(example[name]) for name in ("matrix_bytes", "saved_bytes", "flash_bytes", "peak_bytes")]
    by_formula = {f"{float(size.split()[0]):g}" for size in sizes} | {str(4 * example["batch_size"])}
    assert numbers_that_stay(measured_here, rows, keys, allowed=by_formula) == set()


def test_workspaces_are_told_apart_from_what_the_formulas_count(make_rows):
    eager = next(found for found in findings.allocated(make_rows("h200")) if found["mode"] == "eager")
    assert (eager["workspace"] > 0).all()
    assert eager["before_over_model"].tolist() == pytest.approx([1] * 4)
    assert eager["peak_over_model"].tolist() == pytest.approx([1] * 4)


def test_out_of_memory_shows_as_such_and_is_worked_out(rendered):
    rows, text, _ = rendered["h200"]
    assert re.search(r"\| +64 \| +65536 \| +OOM \| +OOM \| +– \| +– \|", text)
    assert "Eager attention ran out of memory at length 65536" in text
    example = findings.worked_example(selection.ordered(rows), selection.memory_of(rows))
    assert (example["seen"], example["seq_len"], example["head_dim"]) == (True, 65536, 64)
    peak = peak_bytes(Shape(8, 1, 65536, 64, False), 4, "cuda")
    assert sum(example["lines"].values()) == example["peak_bytes"] == peak


def test_where_nothing_runs_out_the_worked_example_is_the_first_power_of_two_that_would(rendered):
    rows, text, _ = rendered["laptop"]
    example = findings.worked_example(selection.ordered(rows), selection.memory_of(rows))
    assert not example["seen"]
    assert (
        example["peak_bytes"]
        > example["memory_bytes"]
        >= peak_bytes(Shape(8, 1, example["seq_len"] // 2, 64, False), 4, "cpu")
    )
    assert "Nothing ran out of memory" in text


def test_the_fit_finds_one_matrix_where_one_is_saved_and_two_where_two_are(make_rows):
    rows = make_rows("h200")
    assert findings.saved(rows, "eager")["agrees"]
    rows["saved_bytes"] += 8 * 4 * rows["seq_len"] ** 2
    found = findings.saved(rows, "eager")
    assert not found["agrees"]
    assert found["matrices"] == pytest.approx(2, rel=0.01)


def test_a_prediction_that_was_not_seen_is_said_to_disagree(make_rows):
    rows = make_rows("h200")
    assert findings.memory_end(rows, Memory("cuda", int(150e9)))["agree"]
    assert not findings.memory_end(rows, Memory("cuda", int(20e9)))["agree"]


@pytest.mark.parametrize(("factor", "word"), [(0.2, "faster than"), (1, "as fast as"), (5, "slower than")])
def test_the_word_on_compiling_follows_the_times(make_rows, factor, word):
    rows = make_rows("laptop")
    times = [name for name in rows if name.endswith("_ms") and name != "samples_ms"]
    eager = rows[rows["mode"] == "eager"]
    rows.loc[rows["mode"] == "compiled", times] = eager[times].to_numpy() * factor
    for entry in findings.compilation(rows):
        assert entry["by_word"] == {word: {"count": 3, "lengths": [128, 512, 1024]}}


def test_compiling_is_told_apart_by_length_and_not_averaged_over_short_and_long(make_rows, tmp_path):
    rows = make_rows("laptop")
    times = [name for name in rows if name.endswith("_ms") and name != "samples_ms"]
    eager = rows[rows["mode"] == "eager"]
    factors = eager["seq_len"].map({128: 2, 512: 1, 1024: 0.5}).to_numpy()
    rows.loc[rows["mode"] == "compiled", times] = eager[times].to_numpy() * factors[:, None]
    for entry in findings.compilation(rows):
        assert {word: said_of["lengths"] for word, said_of in entry["by_word"].items()} == {
            "slower than": [128],
            "as fast as": [512],
            "faster than": [1024],
        }
    text = section.build(rows, tmp_path)
    for part in ("forward", "backward"):
        assert (
            f"At length 1024 an eager {part} pass takes 2.00× (head_dim 64) the time of a compiled one;"
            " over the grid it takes 0.500× (length 128) to 2.00× (length 1024)."
        ) in text
    assert "slower than eager at 1 of 3 problems (length 128), as fast as eager at 1 (length 512)" in text
    assert "geometric mean" not in text.split("### Others' figures")[0]


def test_without_a_compiler_nothing_is_said_of_compiling_but_why(rendered):
    _, text, _ = rendered["smoke"]
    head, missing = text.split("### What was not measured, or not well")
    assert "torch_compile" not in head
    assert "C++ compiler" in missing


def test_where_everything_is_skipped_one_line_says_so(make_rows, tmp_path):
    keys = pd.DataFrame(Cell().row_keys())
    first = make_rows("smoke").iloc[:1].drop(columns=["mode", "phase", "clock"])
    rows = keys.merge(first, how="cross").assign(status="skipped", reason="needs 1 GPU, 0 present")
    text = section.build(rows, tmp_path)
    assert "No attention pass could be timed" in text
    assert "needs 1 GPU, 0 present" in text


def test_others_figures_stand_beside_ours_with_their_doubts(rendered):
    _, text, _ = rendered["h200"]
    figures = text.split("### Others' figures")[1]
    assert "launch time only, not synchronised" in figures
    assert re.search(r"write-up 4 .*ran out of memory at length 16384; ours did not\.", figures)


def test_a_length_that_one_head_dim_alone_reached_is_not_said_of_the_others(make_rows):
    rows = make_rows("h200")
    rows = rows[(rows["head_dim"] == 64) | (rows["seq_len"] <= 8192)]
    for entry in findings.growth(rows):
        assert entry["seq_len"] == 16384
        assert list(entry["longest"].index) == ["head_dim 64"]
        assert list(entry["exponents"].index) == ["head_dim 64"]
    assert list(findings.saved(rows, "eager")["share"].index) == ["head_dim 64"]


def test_where_head_dims_grow_in_different_ways_each_is_said_of_its_own(make_rows, tmp_path):
    rows = make_rows("h200")
    times = [name for name in rows if name.endswith("_ms") and name != "samples_ms"]
    rows.loc[(rows["head_dim"] == 128) & (rows["seq_len"] == 16384), times] /= 2
    growth = [
        line for line in section.build(rows, tmp_path).splitlines() if "Between the two longest sequences" in line
    ]
    assert len(growth) == 4
    for line in growth:
        assert (
            "grows about quadratically with length at head_dim 16, head_dim 32 and head_dim 64,"
            " and grows about linearly at head_dim 128"
        ) in line
