import pytest

from pipeline.compare.pair import compare
from pipeline.report.versus import FASTER, SAME, SLOWER

BASE = {"eager": [100.0], "sdpa": [80.0], "eager_again": [100.0]}


def pair(make_run, b, a=BASE, tolerance=0.05):
    return compare(make_run("a", a), make_run("b", b), tolerance)


def verdicts(found):
    return dict(found.times[["row", "verdict"]].to_numpy())


def test_rows_of_two_runs_are_judged_each_with_its_own(make_run):
    found = pair(make_run, {"eager": [120.0], "sdpa": [40.0], "eager_again": [100.0]})
    assert verdicts(found) == {"eager": SLOWER, "sdpa": FASTER, "eager_again": SAME}
    assert list(found.times["verdict"]) == [SLOWER, FASTER, SAME]
    assert found.times.set_index("row")["ratio"]["sdpa"] == pytest.approx(2.0)


def test_repeats_of_either_run_decide_what_a_ratio_alone_would_not(make_run):
    repeats = {levers: [median[0], median[0] * 1.001] for levers, median in BASE.items()}
    slower = {levers: [1.03 * each for each in medians] for levers, medians in repeats.items()}
    assert set(verdicts(pair(make_run, slower, repeats)).values()) == {SLOWER}
    assert (
        SLOWER not in verdicts(pair(make_run, {levers: [1.03 * median[0]] for levers, median in BASE.items()})).values()
    )


@pytest.mark.parametrize(("tolerance", "fails"), [(0.05, True), (0.3, False)])
def test_slower_beyond_the_tolerance_fails(make_run, tolerance, fails):
    found = pair(make_run, BASE | {"eager": [120.0]}, tolerance=tolerance)
    assert bool(found.failure) is fails


def test_a_row_that_lost_its_figures_fails_and_one_that_gained_some_does_not(make_run):
    whole, lacking = make_run("a", BASE), make_run("b", BASE)
    lacking.records[0]["rows"][1] = {"levers": "sdpa", "status": "oom", "reason": "full"}
    [line] = compare(whole, lacking, 0.05).outcomes.to_dict("records")
    assert (line["row"], line["status_b"], line["lost"]) == ("sdpa", "oom", True)
    assert "lost" in compare(whole, lacking, 0.05).failure
    assert compare(lacking, whole, 0.05).failure == ""


def test_runs_without_a_time_in_common_fail(make_run):
    found = compare(make_run("a", BASE), make_run("b", {"eager": [100.0]}, size="xl"), 0.05)
    assert "no time is in both" in found.failure
    assert (len(found.outcomes.query("of == 'left_only'")), len(found.outcomes.query("of == 'right_only'"))) == (3, 1)


def test_peaks_of_memory_differ_beyond_the_tolerance_in_either_direction(make_run):
    a, b = make_run("a", BASE), make_run("b", BASE)
    for row, factor in zip(b.records[0]["rows"], (1.2, 0.8, 1.01), strict=True):
        row["peak_bytes"] = int(row["peak_bytes"] * factor)
    found = compare(a, b, 0.05).memory
    assert list(found["ratio"]) == pytest.approx([1.2, 0.8])


def test_the_gpu_s_work_is_a_figure_of_its_own(make_run):
    a, b = make_run("a", BASE), make_run("b", BASE)
    for run, busy_ms in ((a, 50.0), (b, 70.0)):
        run.records[0]["rows"][0]["gpu_busy_ms"] = busy_ms
    found = compare(a, b, 0.05).times
    assert found.loc[found["quantity"] == "gpu_busy_ms", "verdict"].tolist() == [SLOWER]


def test_what_is_unstable_is_not_called_slower(make_run):
    a, b = make_run("a", BASE), make_run("b", BASE | {"eager": [200.0]})
    b.records[0]["rows"][0]["status"] = "unstable"
    assert compare(a, b, 0.05).failure == ""
