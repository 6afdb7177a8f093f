import re

import pandas as pd
import pytest

from pipeline.formulas import attention
from pipeline.report.baselines import COLUMNS
from pipeline.stages.attention.cell import Cell
from pipeline.stages.attention.report import baselines, facts, section

from ..sections import (
    built,
    contents,
    drawn_figures,
    gaps,
    linked_figures,
    render,
)

ALL = ("h200", "laptop", "smoke")

build = built(section.build, "attention")


@pytest.fixture(scope="module")
def rendered(make_rows, tmp_path_factory):
    return render(build, {name: make_rows(name) for name in ALL}, tmp_path_factory)


def parts_of(rows):
    return section.build(rows)


def limit_of(rows):
    return facts.limit(facts.eager(facts.usual(facts.host_times(rows))))


@pytest.mark.parametrize("name", ALL)
def test_the_section_has_no_gap_and_links_every_figure_that_it_draws(rendered, name):
    _, text, folder = rendered[name]
    assert gaps(text) == []
    assert linked_figures(text, "attention") == drawn_figures(folder) == {"memory"}


def test_the_same_rows_give_the_same_bytes(rendered, make_rows, tmp_path):
    _, text, folder = rendered["h200"]
    assert build(make_rows("h200"), tmp_path) == text
    assert contents(tmp_path) == contents(folder)


def test_the_answer_gives_the_limit_by_formula_and_as_seen(make_rows):
    end = limit_of(make_rows("h200"))
    fits = attention.peak_bytes(end.shape.__class__(8, 1, end.longest_by_formula, 64, False), 4, "cuda")
    assert fits <= end.memory_bytes < fits * 1.001
    answer = parts_of(make_rows("h200")).answer
    assert f"up to length {end.longest_by_formula} by formula; 16384 fitted, 65536 ran out." in answer
    assert "and nothing tried ran out" in parts_of(make_rows("laptop")).answer


def test_memory_that_ran_out_has_no_time_and_no_size(rendered):
    _, text, _ = rendered["h200"]
    assert re.search(r"\| +65536 \| +OOM \| +OOM \| +OOM \| +OOM \| +\| +\| +\|", text)


def test_a_formula_that_is_wrong_about_what_fits_is_said_to_be(make_rows):
    rows = make_rows("h200")
    assert "ran out of memory agrees with the formula" in str(parts_of(rows).parts)
    rows.loc[rows["head_dim"] == 32, "memory_bytes"] = 20e9  # of which 16384 takes 34
    assert "The formula is wrong about what fits at head_dim 32." in str(parts_of(rows).parts)


def test_workspaces_are_not_held_against_the_formula(make_rows):
    rows = make_rows("h200")
    rows["peak_bytes"] += 30e9
    rows["workspace_bytes"] += 30e9
    assert "the peak is 1.00× the formula's" in str(parts_of(rows).parts)
    rows["peak_bytes"] -= rows["workspace_bytes"]
    rows["workspace_bytes"] = 0
    rows["peak_bytes"] *= 2
    assert "the peak is 2.00× the formula's" in str(parts_of(rows).parts)


def test_the_accounting_is_of_the_shortest_problem_that_ran_out(make_rows):
    assert limit_of(make_rows("h200").replace({"seq_len": {65536: 131072}})).first_too_long.seq_len == 131072


def test_a_ratio_is_told_only_where_both_modes_have_a_time(make_rows):
    rows = make_rows("h200")
    without = rows[~((rows["mode"] == "compiled") & (rows["seq_len"] == 16384))]
    (answer,) = (item.answer for item in parts_of(without).problems if item.name == "torch_compile (a)")
    assert "at length 8192" in answer


def test_how_saved_memory_grows_is_computed(make_rows):
    rows = make_rows("h200")
    assert "to the power 1.99" in str(parts_of(rows).problems)
    rows["saved_bytes"] = rows["seq_len"] * 1000
    assert "to the power 1.00" in str(parts_of(rows).problems)


def test_without_a_compiler_nothing_is_said_of_compiling(make_rows):
    found = parts_of(make_rows("smoke"))
    assert [problem.name for problem in found.problems] == ["pytorch_attention"]


def test_where_everything_is_skipped_one_line_says_so(make_rows):
    keys = pd.DataFrame(Cell().row_keys())
    first = make_rows("smoke").iloc[:1].drop(columns=["mode", "phase", "clock"])
    rows = keys.merge(first, how="cross").assign(status="skipped", reason="needs 1 GPU, 0 present")
    nothing = parts_of(rows)
    assert nothing.answer == "Nothing was measured: needs 1 GPU, 0 present."
    assert not nothing.parts


def test_a_machine_without_a_gpu_says_nothing_of_gpus(rendered):
    _, text, _ = rendered["laptop"]
    assert not re.search("GPU|CUDA", text)


def test_others_times_are_paired_by_batch_shape_mode_and_phase(make_rows):
    rows = make_rows("h200")
    pairs = baselines.pairs(rows)
    assert {*COLUMNS} <= {*pairs}
    assert not pairs[["what", "theirs", "ours", "write_up"]].isna().any().any()
    line = pairs[(pairs["what"] == "eager forward, head_dim 16, length 256") & (pairs["theirs"] == 0.15)].iloc[0]
    mine = rows.query(
        "mode == 'eager' and phase == 'forward' and head_dim == 16 and seq_len == 256 and clock == 'host'"
    )
    assert line["ours"] == mine["mean_ms"].iloc[0]
    assert baselines.pairs(rows.assign(setting_batch_size=3)).empty
