import math

import pandas as pd
import pytest

from pipeline.report.trust import of_rows


def test_of_all_times_the_unstable_are_counted_and_what_has_no_time_is_not():
    rows = pd.DataFrame(
        {
            "status": ["ok", "unstable", "oom", "ok"],
            "median_ms": [1.0, 2.0, None, 3.0],
            "setting_unstable_rel_error": 0.05,
        }
    )
    assert of_rows(rows) == {"times": 3, "unstable": 1, "limit_pct": 5.0}


def test_rows_without_times_say_nothing_of_themselves():
    assert of_rows(pd.DataFrame({"status": ["ok"], "sum": [10.0]})) == {}
    assert of_rows(pd.DataFrame({"status": ["oom"], "median_ms": [None], "setting_unstable_rel_error": 0.05})) == {}


def test_figures_say_how_far_their_repeats_lie_apart_unstable_ones_by_themselves():
    medians_ms = [[10.0, 10.2], [8.0, 8.0], [7.0], [10.0, 20.0], None]
    samples_ms = [None, None, None, [[9.0, 10.0, 12.0], [20.0]], None]
    status = ["ok", "ok", "ok", "unstable", "skipped"]
    columns = {"status": status, "medians_of_repeats_ms": medians_ms, "samples_of_repeats": samples_ms}
    rows = pd.DataFrame(columns, dtype=object)
    of_two = math.log(10.2 / 10.0) / math.sqrt(2)  # the standard deviation of two figures
    stable = {"typical_pct": 100 * of_two / math.sqrt(2), "most_pct": 2.0}
    assert of_rows(rows) == pytest.approx({**stable, "unstable_most_pct": 100.0})
    assert of_rows(rows[:3]) == pytest.approx(stable)
    assert of_rows(rows[2:]) == {}


def test_of_a_stage_that_times_whole_steps_their_repeats_tell_how_far_repeats_lie_apart():
    medians_ms, phases = [[10.0, 10.2], [0.2, 0.9]], ["train_step", "communication"]
    columns = {"phase": phases, "medians_of_repeats_ms": medians_ms, "samples_of_repeats": None}
    rows = pd.DataFrame({"status": "ok", **columns})
    assert of_rows(rows)["most_pct"] == pytest.approx(2)
    assert of_rows(rows.assign(phase="communication"))["most_pct"] == pytest.approx(350)


def test_figures_at_a_clock_that_a_power_limit_lowered_are_counted_with_the_lowest_and_the_full_clock():
    capped = {"power_capped": [True, False, True, False], "mean_sm_clock_mhz": [1500.0, 1980.0, 1410.0, 1700.0]}
    rows = pd.DataFrame({"status": "ok", **capped})
    assert of_rows(rows) == {"capped": 2, "clock_mhz": 1410.0, "full_clock_mhz": 1980.0}
    assert of_rows(rows[rows["power_capped"]])["full_clock_mhz"] is None
    assert of_rows(rows[~rows["power_capped"]]) == {}
