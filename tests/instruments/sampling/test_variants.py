import pytest

from pipeline.instruments.sampling.step_timing import Sampling, Timings
from pipeline.instruments.sampling.variants import step_rows, turns

ROUGH_WAIT_MS = [0.001, 0.01, 0.1, 0.5]


def sampling(step_ms, throttle_reasons=(), events_ms=()):
    state = [{"throttle_reasons": list(throttle_reasons)}]
    timings = {"communication": Timings(ROUGH_WAIT_MS), "train_step": Timings(step_ms, list(events_ms))}
    return Sampling(timings, state, state)


def by_name(rows):
    return {(row["phase"], row["clock"]): row for row in rows}


def test_turns_go_back_and_forth_and_the_first_round_has_the_first_turns():
    assert list(turns("ab", rounds=3)) == [
        *(("a", True), ("b", True)),
        *(("b", False), ("a", False)),
        *(("a", False), ("b", False)),
    ]


def test_there_is_a_row_per_phase_and_clock_with_the_samples_of_all_turns():
    rows = by_name(step_rows([sampling([1.0, 2.0], events_ms=[0.5]), sampling([3.0], events_ms=[0.7])], 1.0))
    assert list(rows) == [("communication", "host"), ("train_step", "host"), ("train_step", "cuda_events")]
    assert rows["train_step", "host"]["samples_ms"] == [1.0, 2.0, 3.0]
    assert rows["train_step", "host"]["median_ms"] == 2.0
    assert rows["train_step", "cuda_events"]["samples_ms"] == [0.5, 0.7]
    assert rows["communication", "host"]["n"] == 2 * len(ROUGH_WAIT_MS)


@pytest.mark.parametrize(
    ("samplings", "status", "reason"),
    [
        ([sampling([10.0, 10.1]), sampling([10.2, 10.1])], "ok", None),
        ([sampling([10.0, 20.0, 30.0, 5.0])], "unstable", "median known to"),
        ([sampling([10.0] * 4, ["hw_thermal_slowdown"]), sampling([10.0] * 4)], "unstable", "hw_thermal_slowdown"),
    ],
)
def test_all_phases_are_judged_by_the_whole_step_and_every_turn_s_gpus(samplings, status, reason):
    rows = step_rows(samplings, unstable_rel_error=0.05)
    assert {row["status"] for row in rows} == {status}
    assert all(reason in row["reason"] if reason else "reason" not in row for row in rows)
