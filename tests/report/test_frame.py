import math

import numpy as np
import pandas as pd
import pytest

from pipeline.registry import stages
from pipeline.report.frame import build, card, in_order, known

from ..records import CPU, record, timed_row
from .frames import failed, folded, repeated, timed


def test_a_row_has_the_median_of_its_repeats_their_number_and_their_spread():
    [row] = folded(*repeated("a", [10.0, 10.3, 10.1], peak_bytes=7)).to_dict("records")
    assert (row["median_ms"], row["repeats"], row["peak_bytes"]) == (10.1, 3, 7)
    assert row["spread_pct"] == pytest.approx(3.0)
    assert row["medians_ms"] == [10.0, 10.3, 10.1]
    assert len(row["samples_of_repeats"]) == 3
    assert row["status"] == "ok"


def test_repeats_that_contradict_each_other_are_unstable_and_say_so():
    frame = folded(*repeated("a", [324.0, 387.0, 324.0]), timed("b", 10.0))
    assert list(frame["status"]) == ["unstable", "ok"]
    assert "19%" in frame["reason"][0]


def test_a_phase_may_contradict_itself_where_its_whole_step_would_not_notice():
    phases = [timed("a", 100.0, phase="train_step"), *repeated("a", [0.01, 0.02], phase="waiting")]
    frame = folded(*phases, keys=("name", "phase"))
    assert set(frame["status"]) == {"ok"}


def test_a_repeat_without_figures_leaves_the_others_theirs():
    frame = folded(failed("a", repeat=1), *repeated("a", [10.0, 10.1]))
    assert (frame["status"][0], frame["repeats"][0]) == ("ok", 2)


def test_a_row_without_figures_keeps_its_outcome():
    frame = folded(failed("a", repeat=1, error=0.5), failed("a", repeat=2, error=0.5), timed("b", 1.0))
    assert (frame["status"][0], frame["reason"][0], frame["repeats"][0]) == ("oom", "CUDA out of memory", 0)
    assert np.isnan(frame["median_ms"][0])
    assert frame["error"][0] == 0.5


@pytest.mark.parametrize(("repeated_cells", "known_of"), [("ad", "abd"), ("a", "a")])
def test_the_spread_of_repeats_is_pooled_by_kind_unstable_ones_too_if_it_is_of_two_cells(repeated_cells, known_of):
    medians_ms = [100.0, 130.0, 100.0]
    rows = [row for name in repeated_cells for row in repeated(name, medians_ms, precision="bf16")]
    rows += [timed("b", 50.0, precision="bf16"), timed("c", 50.0, precision="fp32")]
    spread = folded(*rows, keys=("name", "precision")).set_index("name")["spread_log_std"].dropna()
    assert "".join(sorted(spread.index)) == known_of
    assert list(spread) == pytest.approx([np.std(np.log(medians_ms), ddof=1)] * len(spread))


def test_the_spread_of_repeats_is_pooled_over_figures_of_any_size():
    up, down = math.exp(0.01), math.exp(-0.01)
    rows = [*repeated("a", [5 * up, 5 * down]), *repeated("b", [700 * up, 700, 700 * down]), timed("c", 1.0)]
    [row] = folded(*rows)[["spread_log_std", "spread_degrees"]].dropna().drop_duplicates().to_numpy()
    assert list(row) == [pytest.approx(math.sqrt((2e-4 + 2e-4) / 3)), 3]


@pytest.mark.parametrize(("idle_pct", "limit"), [([0, 30, 35], "host"), ([30, 0, 5], "gpu")])
def test_folded_repeats_are_limited_by_what_their_own_idle_time_says(idle_pct, limit):
    rows = [
        timed("a", 10.0, repeat=number, gpu_idle_pct=idle, limited_by="host" if idle >= 20 else "gpu")
        for number, idle in enumerate(idle_pct, start=1)
    ]
    assert list(folded(*rows)["limited_by"]) == [limit]


def test_cards_are_named_by_machine_and_gpus_each_that_repeats_ran_on():
    rows = [timed("a", 10.0, repeat=1), timed("a", 10.0, repeat=2, cards="another GPU")]
    assert folded(*rows)["cards"][0] == "a GPU, another GPU"
    machine = {**CPU, "kind": "NVIDIA X", "gpus_taken": ["GPU-1234567890", "GPU-abcdef0123"]}
    assert [card(record(machine=machine)), card(record())] == ["NVIDIA X 12345678 abcdef01", "a CPU"]


def test_a_stage_s_frame_has_every_declared_column_and_one_row_for_its_repeats():
    records = [
        {**record(cell={**record()["cell"], "repeat": number}), "rows": [row]}
        for number, row in ((1, timed_row(median_ms=2.0, q1_ms=1.9, q3_ms=2.1)), (2, timed_row(median_ms=2.0)))
    ]
    frame = build(stages()["timing"], records)
    assert len(frame) == 1
    assert set(stages()["timing"].row_types.column_names()) <= {*frame, "repeat"}
    assert frame["repeats"][0] == 2


def test_text_of_a_record_becomes_one_line():
    odd = {**record(), "rows": [{**timed_row(), "median_ms": 2.0, "reason": "one\ntwo\x1b[2J"}]}
    assert build(stages()["timing"], [odd])["reason"][0] == "one two\\x1b[2J"


def test_the_faster_of_two_steps_has_the_higher_mfu_where_each_process_measured_its_peak():
    rows = [
        timed_row("train_step", model_tflops_per_s=rate, mfu_pct=100 * rate / peak, median_ms=1.0, repeat=1)
        for rate, peak in ((1.0, 2.0), (1.5, 6.0))
    ]
    records = [
        {**record(cell={**record()["cell"], "context_length": n}), "rows": [row]} for n, row in enumerate(rows, 1)
    ]
    mfu = build(stages()["timing"], records)["mfu_pct"]
    assert list(mfu) == pytest.approx([100 / 6, 25.0])


def test_known_keeps_rows_that_have_all_columns():
    rows = pd.DataFrame({"a": [1, None], "b": [1, 2]})
    assert len(known(rows, "a", "b")) == 1
    assert known(rows, "c").empty


def test_rows_are_sorted_as_listed_unknown_names_last():
    rows = in_order(pd.DataFrame({"size": ["mine", "xl", "small"]}), ["size"], {"size": ["small", "xl"]})
    assert list(rows["size"]) == ["small", "xl", "mine"]
