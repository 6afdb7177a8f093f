import re

import pandas as pd
import pytest

from pipeline.stages.sharding.report import findings, section, selection

from ..sections import drawn_figures, faults_of_parts, gaps, keys, linked_figures, numbers_that_stay, unnamed_rows

TIMES = ["median_ms", "q1_ms", "q3_ms", "mean_ms", "std_ms", "min_ms", "max_ms"]
KEYS = keys("sharding", "status", "backend", "weight_tolerance", "n")


@pytest.fixture
def build(monkeypatch, tmp_path):
    """Build the section without its figure, which takes the time."""
    monkeypatch.setattr(section, "draw_all", lambda *_: {"memory": "figures/sharding/memory.svg"})
    return lambda rows: section.build(rows, tmp_path)


def prediction_scaled(rows, factor):
    rows = rows.astype({"predicted_bytes": float})
    rows.loc[rows["kind"].isin(["peak", "requested_peak"]), "predicted_bytes"] *= factor
    return rows


def test_the_section_of_a_part_of_the_cells_is_whole(h200, tmp_path_factory):
    assert faults_of_parts(section.build, "sharding", h200, tmp_path_factory) == {}


@pytest.mark.parametrize("name", ["h200", "small_gpu", "smoke", "skipped"])
def test_the_columns_of_rows_tell_the_rows_of_a_cell_apart(request, name):
    assert unnamed_rows("sharding", request.getfixturevalue(name)).empty


@pytest.mark.parametrize("name", ["h200", "small_gpu", "smoke", "skipped"])
def test_the_section_holds_no_gap_in_its_words(request, build, name):
    text = build(request.getfixturevalue(name))
    assert gaps(text) == []


@pytest.mark.parametrize("name", ["h200", "small_gpu", "smoke"])
def test_the_figure_is_drawn_and_linked(request, tmp_path, name):
    text = section.build(request.getfixturevalue(name), tmp_path)
    assert linked_figures(text, "sharding") == drawn_figures(tmp_path) == {"memory"}


def test_no_number_of_the_prose_stays_when_the_tables_change(h200, build):
    # 0: weights that do not differ; 1 and 2: ZeRO's stages and formulas; 3: the share that a right peak may be off;
    # 45: how many counts there are.
    allowed = {"0", "1", "2", "3", "45"}
    assert numbers_that_stay(lambda rows: build(rows).split("### Others'")[0], h200, KEYS, allowed) == set()


def test_the_peak_is_the_larger_of_both_parts_of_a_step(h200):
    rows = selection.completed(h200)
    table = findings.peaks(rows[rows["precision"] == "bf16"])
    # In full: five copies and no activations, against four and 12 GB of them.
    assert table.loc["AdamW", "where"] == "before_step"
    assert table.loc["AdamW", "measured_bytes"] == pytest.approx(1.01 * (4 * 7.99e9 + 12e9), rel=0.01)
    assert table["requested_error"].abs().max() < 0.001
    # What the allocator rounds up is in the first peak, from which the later one is predicted, but not in the state.
    assert table["error"].between(-0.01, -0.001).all()


def test_sharing_out_the_moments_among_two_ranks_saves_one_copy_of_four(h200):
    rows = selection.completed(h200)
    state = findings.states(rows[rows["precision"] == "bf16"])
    assert (state["saved_share"], state["state_ratio"]) == (1 / 4, 2)


@pytest.mark.parametrize(
    ("factor", "words"),
    [(1, "every predicted peak of a training step is within 3.0%"), (1.1, "0 of 3 predicted peaks")],
)
def test_a_wrong_prediction_of_the_peak_is_said_to_be(h200, build, factor, words):
    assert words in build(prediction_scaled(h200, factor))


def test_a_count_that_is_not_the_predicted_one_is_said_to_be(smoke, build):
    assert "every one is the predicted one to the byte" in build(smoke)
    off = smoke.copy()
    off.loc[off["kind"] == "optimizer_state", "measured_bytes"] += 1_000_000
    assert "the largest difference from the prediction is 1.00 MB" in build(off)


@pytest.mark.parametrize(("factor", "word"), [(0.8, "faster than"), (1.2, "slower than")])
def test_the_word_on_the_step_follows_the_times(h200, build, factor, word):
    rows = h200.astype(dict.fromkeys(TIMES, float))
    for impl in ("sharded", "torch_zero"):
        rows.loc[rows["impl"] == impl, TIMES] = rows.loc[rows["impl"] == "adamw", TIMES].to_numpy()
    rows.loc[rows["impl"] == "sharded", TIMES] *= factor
    text = build(rows)
    assert f"is {word} one with AdamW in full" in text
    assert f"and {word} one with PyTorch's (" in text


def test_the_difference_to_zero_is_told_with_the_bytes_of_the_run(h200, build):
    text = build(h200)
    assert "Ours sends 1.50× that" in text
    more = h200.astype({"sent_bytes": float})
    more.loc[more["collective"] == "broadcast", "sent_bytes"] *= 2
    assert "Ours sends 2.00× that" in build(more)


def test_on_a_cpu_there_are_no_peaks_and_it_is_said(smoke, build):
    text = build(smoke)
    assert "There is no GPU here, whose allocator would count the rest" in text
    assert "peak on the way there" not in text


def test_without_memory_for_the_full_state_the_shared_one_has_figures(small_gpu, build):
    text = build(small_gpu)
    assert re.search(r"\| fp32 +\| AdamW +\| +OOM \|", text)
    assert re.search(r"\| fp32 +\| ShardedOptimizer +\| +\d", text)
    assert "saves" not in text.split("<!-- end of findings -->")[1].split("(b)")[0]


def test_weights_that_differ_are_said_to(h200, build):
    assert "do not agree" not in build(h200)
    apart = h200.copy()
    apart.loc[apart["impl"] == "sharded", "weight_difference"] = 0.01
    assert "do not agree" in build(apart)


def test_a_machine_with_one_gpu_gets_the_reason_alone(skipped, build):
    text = build(skipped)
    assert "No step with a sharded optimizer could be measured" in text
    assert text.count("needs 2 GPUs, 1 present") == 1
    assert "![" not in text


def test_a_skipped_cell_stands_beside_a_measured_one(h200, skipped, build):
    text = build(pd.concat([h200, skipped.assign(world_size=8)], ignore_index=True))
    assert "bf16, 8 ranks" in text.split("### What was not measured")[1]
