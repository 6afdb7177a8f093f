import pytest

from pipeline.compare.pair import compare, work
from pipeline.registry import stages
from pipeline.report.versus import FASTER, SAME, SLOWER

BASE = {"eager": [100.0], "sdpa": [80.0], "eager_again": [100.0]}


@pytest.fixture
def both(make_run):
    """Two equal runs, whose rows a test may change."""
    return make_run("a", BASE), make_run("b", BASE)


def scaled(factor, repeats=(1.0,)):
    return {levers: [factor * median[0] * each for each in repeats] for levers, median in BASE.items()}


def test_the_same_rows_of_two_runs_are_judged_and_the_largest_difference_is_first(make_run):
    a = make_run("a", {"eager": [100.0], "sdpa": [80.0], "fused": [90.0]})
    b = make_run("b", {"eager": [120.0], "sdpa": [40.0], "fused": [90.0]})
    times = compare(a, b, 0.05).times.set_index("row")
    assert list(times["verdict"].items()) == [("sdpa", FASTER), ("eager", SLOWER), ("fused", SAME)]
    assert times["ratio"]["sdpa"] == pytest.approx(2.0)


def test_times_that_depend_on_the_host_come_last_however_far_apart(both):
    for run, call_ms in zip(both, (1.0, 9.0), strict=True):
        for part in ("median", "q1", "q3"):
            run.frames["levers"][f"{part}_call_ms"] = call_ms
    assert [*compare(*both, 0.05).times["quantity"]] == ["ms"] * 3 + ["call_ms"] * 3


def test_steps_are_the_same_rows_whatever_other_levers_their_cells_combine(make_run):
    few = make_run("b", BASE, combinations="sdpa")
    assert set(compare(make_run("a", BASE), few, 0.05).times["row"]) == set(BASE)
    assert compare(few, few, 0.05).outcomes.empty


@pytest.mark.parametrize(("repeats", "is_called", "once"), [((1.0, 1.001), True, 0), ((1.0,), False, len(BASE))])
def test_repeats_decide_small_ratios_and_a_failure_counts_times_without_repeats(make_run, repeats, is_called, once):
    a, b, slow = (make_run("a run", scaled(factor, repeats)) for factor in (1.0, 1.03, 1.5))
    assert (set(compare(a, b, 0.05).times["verdict"]) == {SLOWER}) == is_called
    assert f"({once} of them without repeats)" in compare(a, slow, 0.05).failure


@pytest.mark.parametrize(
    ("status", "tolerance", "fails"),
    [("ok", 0.05, True), ("ok", 0.19, True), ("ok", 0.3, False), ("unstable", 0, False)],
)
def test_slower_beyond_the_tolerance_fails_unless_it_is_unstable(make_run, status, tolerance, fails):
    a, b = make_run("a", BASE), make_run("b", BASE | {"eager": [120.0]})
    b.records[0]["rows"][0]["status"] = status
    assert bool(compare(a, b, tolerance).failure) is fails


def test_a_row_that_lost_its_values_fails_and_one_that_gained_some_does_not(both):
    whole, lacking = both
    lacking.records[0]["rows"][1] = {"levers": "sdpa", "status": "oom", "reason": "full"}
    found = compare(whole, lacking, 0.05)
    assert found.outcomes[["row", "status_b", "lost"]].to_numpy().tolist() == [["sdpa", "oom", True]]
    assert "lost" in found.failure
    assert compare(lacking, whole, 0.05).failure == ""


def test_rows_of_different_amounts_of_work_are_listed_and_not_compared(both):
    a, b = both
    b.records[0]["settings"]["vocab_size"] = 500
    b.records[0]["rows"][2] = {"levers": "eager_again", "status": "oom", "reason": "full"}
    found = compare(a, b, 0.05)
    assert found.times.empty
    assert found.memory.empty
    columns = found.other_work[["row", "work_a", "work_b"]].to_numpy().tolist()
    work_a, work_b = (f"batch_size=4 vocab_size={size}" for size in (10000, 500))
    assert columns == [["eager", work_a, work_b], ["sdpa", work_a, work_b]]
    assert found.outcomes["lost"].sum() == 1


def test_the_work_of_a_transfer_is_its_tensor_whatever_the_settings():
    row = {"what": "memory", "kind": "copy", "tensor_bytes": 4096.0, "setting_memory_bytes": 8192}
    assert work(row, stages()["ceilings"]) == {"tensor_bytes": "4096"}


def test_runs_without_a_time_in_common_fail(make_run):
    found = compare(make_run("a", BASE), make_run("b", {"eager": [100.0]}, size="xl"), 0.05)
    assert "no timing is in both runs" in found.failure
    assert found.outcomes["of"].value_counts().to_dict() == {"left_only": 3, "right_only": 1, "both": 0}


def test_memory_peaks_that_differ_beyond_the_tolerance_appear_once_per_cell(both):
    for row, factor in zip(both[1].records[0]["rows"], (1.2, 0.8, 1.2), strict=True):
        row["peak_bytes"] = int(row["peak_bytes"] * factor)
    assert list(compare(*both, 0.05).memory["ratio"]) == pytest.approx([1.2, 0.8])
    assert list(compare(*both, 0.21).memory["ratio"]) == pytest.approx([0.8])


def test_gpu_busy_time_is_compared_too(both):
    for run, busy_ms in zip(both, (50.0, 70.0), strict=True):
        run.records[0]["rows"][0]["gpu_busy_ms"] = busy_ms
    found = compare(*both, 0.05).times
    assert found.loc[found["quantity"] == "gpu_busy_ms", "verdict"].tolist() == [SLOWER]
