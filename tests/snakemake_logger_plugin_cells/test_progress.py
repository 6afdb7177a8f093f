import pytest

from snakemake_logger_plugin_cells.progress import Progress, RunPlan

CELLS_S = {
    "measure_timing": {f"timing/{number}.json": 4.0 for number in range(10)},
    "measure_flash": {f"flash/{number}.json": 40.0 for number in range(5)},
}
TOTALS = {"measure_timing": 10, "measure_flash": 5, "tabulate_timing": 2, "writeup": 1, "all": 1}


def begun(cells_s=CELLS_S, totals=TOTALS):
    progress = Progress(RunPlan(cells_s))
    progress.begin(totals, 0.0)
    return progress


def run_through(progress, jobs, slower=1.0):
    """Run jobs (rule, outputs, seconds) one after the other; yield the estimated and the actual time left."""
    now, left_s = 100.0, slower * sum(seconds for *_, seconds in jobs)
    progress.begin(TOTALS, now)
    for number, (rule, outputs, seconds) in enumerate(jobs):
        progress.start(number, rule, outputs, now)
        yield progress.left_s(now), left_s
        now, left_s = now + slower * seconds, left_s - slower * seconds
        progress.finish(number, now)
    yield progress.left_s(now), left_s


@pytest.mark.parametrize("slow_last", [True, False])
@pytest.mark.parametrize("slower", [0.25, 1.0, 3.0])
def test_the_pace_of_another_machine_is_learnt_from_the_first_jobs(slow_last, slower):
    cells = [(rule, [path], seconds) for rule, cells in CELLS_S.items() for path, seconds in cells.items()]
    others = [("tabulate_timing", ["a.csv"], 1.5)] * 2 + [("writeup", ["w.md"], 15.0), ("all", [], 0.0)]
    jobs = [*(cells if slow_last else cells[::-1]), *others]
    whole = slower * sum(seconds for *_, seconds in jobs)
    for estimate, truth in run_through(Progress(RunPlan(CELLS_S)), jobs, slower):
        if slower == 1.0:
            assert estimate == pytest.approx(truth, abs=1e-6)
        elif truth < 2 / 3 * whole:
            assert truth / 1.5 - 5 < estimate < truth * 1.5 + 5


def test_a_stage_slower_than_expected_hardly_changes_the_estimate_of_others():
    progress = begun()
    cells = [f"flash/{number}.json" for number in range(5)] + [f"timing/{number}.json" for number in range(3)]
    for number, cell in enumerate(cells):
        if number == 5:
            assert progress.left_s(200.0) == pytest.approx(58, rel=0.05)
        progress.start(number, f"measure_{cell.partition('/')[0]}", [cell], 40.0 * number)
        progress.finish(number, 40.0 * (number + 1))
    # Seven cells of the slow stage are left, and half a minute of other jobs.
    assert 7 * 20 < progress.left_s(320.0) < 7 * 40 + 30


def test_parallel_jobs_take_less_time_together():
    cells_s = {"measure_flash": {f"{number}.json": 40.0 for number in range(80)}}
    progress = begun(cells_s, {"measure_flash": 80})
    for turn in range(5):
        for lane in range(8):
            progress.start(8 * turn + lane, "measure_flash", [f"{8 * turn + lane}.json"], 40.0 * turn)
        for lane in range(8):
            progress.finish(8 * turn + lane, 40.0 * (turn + 1))
    assert progress.left_s(200.0) == pytest.approx(5 * 40, rel=0.15)


def test_a_running_job_counts_for_its_remaining_time_and_no_longer_as_waiting():
    progress = Progress(RunPlan({"measure_flash": {"long.json": 99.0, "short.json": 1.0}}))
    progress.finish(1, 0.0)  # events of jobs that never started are ignored
    progress.fail(2)
    progress.begin({"measure_flash": 2}, 0.0)
    assert progress.expected_s("measure_flash") == 50
    progress.start(0, "measure_flash", ["long.json"], 0.0)
    assert progress.expected_s("measure_flash") == 1
    assert progress.left_s(30.0) == pytest.approx(69 + 1)
    assert progress.left_s(190.0) == pytest.approx(1)  # it took longer than expected, so it counts for nothing


def test_a_failed_job_is_counted_separately_and_may_start_again():
    progress = begun()
    progress.start(7, "measure_flash", ["flash/0.json"], 0.0)
    progress.fail(7)
    assert (progress.running.keys(), progress.failed.keys(), progress.done.keys()) == (set(), {7}, set())
    without = progress.left_s(0.0)
    progress.start(7, "measure_flash", ["flash/0.json"], 0.0)
    assert progress.left_s(0.0) == pytest.approx(without + 40)
    progress.finish(7, 40.0)
    assert (progress.running.keys(), progress.failed.keys(), progress.done.keys()) == (set(), set(), {7})
