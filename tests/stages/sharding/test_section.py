import re

import pytest

from pipeline.report.page_parts import Figure, Table
from pipeline.stages.sharding.report import baselines, facts, section

from ..sections import built, contents, gaps, thrice
from .conftest import TOTAL

TIMES = ["median_ms", "q1_ms", "q3_ms", "mean_ms", "std_ms", "min_ms", "max_ms"]


@pytest.fixture
def text(undrawn, tmp_path):
    return lambda rows: built(section.build, "sharding")(rows, tmp_path)


def build(rows):
    return section.build(rows)


def problem(rows, name):
    return next((item.answer for item in build(rows).problems if item.name == name), "")


@pytest.mark.parametrize("name", ["h200", "small_gpu", "smoke", "skipped"])
def test_the_section_holds_no_gap_in_its_words(request, text, name):
    assert gaps(text(request.getfixturevalue(name))) == []


@pytest.mark.parametrize(("name", "lines"), [("h200", 6), ("small_gpu", 3), ("smoke", 3)])
def test_memory_is_drawn_and_each_optimizer_has_a_row(request, name, lines):
    parts = build(request.getfixturevalue(name)).parts
    assert [part.name for part in parts if isinstance(part, Figure)] == ["time_and_memory"]
    assert [len(part.cells) for part in parts if isinstance(part, Table)] == [lines]


def test_drawn_twice_the_section_has_the_same_bytes(h200, tmp_path):
    texts = [built(section.build, "sharding")(h200, tmp_path / name) for name in ("a", "b")]
    assert texts[0] == texts[1]
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_the_section_of_cells_with_repeats_is_whole(h200, text):
    assert gaps(text(thrice("sharding", h200))) == []


def test_the_answer_gives_the_peak_and_the_step_of_each_optimizer(h200):
    run = facts.runs(h200)[0]
    peak_gb = run.peak_bytes.loc[facts.PLAIN, "measured"] / 1e9
    step_ms = run.steps.loc[facts.OURS, "median_ms"]
    answer = build(h200).answer
    assert f"a step and peaks at {peak_gb:.1f} GB; our ShardedOptimizer takes {step_ms:.0f} ms" in answer


def test_the_answer_is_of_a_run_that_is_stable_throughout(h200):
    shaky = h200.copy()
    shaky.loc[(shaky["precision"] == "fp32") & (shaky["impl"] == "adamw"), "status"] = "unstable"
    assert "xl in bf16" in build(shaky).answer


def test_state_is_half_where_two_ranks_share_it(h200):
    state = facts.runs(h200)[0].held_bytes["optimizer_state"]
    assert state[facts.PLAIN] == 2 * TOTAL
    assert state[facts.OURS] == state[facts.TORCHS] == TOTAL


def test_the_peak_is_the_larger_one_of_a_warm_step(h200):
    run = facts.runs(h200)[0]
    peaks = run.peaks_bytes.loc[facts.OURS]
    assert run.peak_bytes.loc[facts.OURS, "measured"] == max(peaks["before_step"], peaks["after_step"])
    assert peaks["initialised"] < peaks["before_step"]


def test_sharding_is_advised_where_it_saves_memory(h200, smoke):
    (action,) = build(h200).actions
    assert action.what == "**On several GPUs, shard the optimizer's state.**"
    assert facts.OURS in action.why
    assert facts.TORCHS in action.why
    level = h200.copy()
    peaks = level["kind"] == "peak"
    level.loc[peaks, "measured_bytes"] = level.loc[peaks, "measured_bytes"].max()
    assert build(level).actions == []
    assert build(smoke).actions == []  # no allocator tells a peak


def test_sharding_is_advised_where_adamw_in_full_does_not_fit(small_gpu, text):
    (action,) = build(small_gpu).actions
    assert "unsharded AdamW runs out of memory; our" in action.why
    assert re.search(r"\| fp32 +\| unsharded AdamW +\| +OOM \|", text(small_gpu))
    assert problem(small_gpu, "optimizer_state_sharding_accounting (b)") == ""


def test_weights_that_differ_are_said_to(h200):
    assert "3 optimizers agree" in problem(h200, "optimizer_state_sharding")
    apart = h200.copy()
    apart.loc[apart["impl"] == "sharded", "weight_difference"] = 0.1
    assert problem(apart, "optimizer_state_sharding").count("**do not agree**") == 2


def test_counts_that_are_not_those_predicted_are_said_not_to_be(smoke):
    name = "optimizer_state_sharding_accounting (a)"
    assert "do not have the bytes predicted" not in problem(smoke, name)
    off = smoke.copy()
    off.loc[(off["kind"] == "gradients") & (off["moment"] == "after_step"), "measured_bytes"] += 4
    assert "do not have the bytes predicted" in problem(off, name)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_ratio_of_times_is_that_of_adamw_over_ours(h200, factor):
    rows = h200.astype(dict.fromkeys(TIMES, float))
    plain = rows["impl"] == "adamw"
    rows.loc[rows["impl"] == "sharded", TIMES] = rows.loc[plain, TIMES].to_numpy()[: sum(plain)] * factor
    assert f"({1 / factor:.3g}" in problem(rows, "optimizer_state_sharding_accounting (b)").replace(".00×", "×")


def test_ours_sends_half_as_much_again_as_zero(h200):
    said = problem(h200, "optimizer_state_sharding_accounting (c)")
    assert said.startswith("fp32 and bf16: each rank sends")
    assert "ours sends 1.50× that" in said


def test_a_machine_with_one_gpu_gets_the_reason_alone(skipped):
    only = build(skipped)
    assert only.answer == "Nothing was measured: needs 2 GPUs, 1 present."
    assert (only.parts, only.actions, only.problems) == ((), (), ())


def test_others_stand_beside_ours_of_as_many_ranks(h200):
    pairs = baselines.pairs(h200)
    run = facts.runs(h200)[0]
    line = pairs[pairs["what"] == "peak memory: our ShardedOptimizer, xl, 2 ranks, fp32"].iloc[0]
    assert (line["theirs"], line["ours"]) == (42, run.peak_bytes.loc[facts.OURS, "measured"] / 1e9)
    assert (pairs["unit"] == "ms").sum() == 4


def test_what_other_precisions_take_stands_below_the_answer(h200):
    shown = section.build(h200)
    other = next(part for part in shown.parts if isinstance(part, str))
    assert "in fp32 on 2 ranks" in shown.answer
    assert other.startswith("xl in bf16 on 2 ranks")
