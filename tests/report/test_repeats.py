import pandas as pd
import pytest

from pipeline.report.intervals import FASTER, SAME
from pipeline.report import trust
from pipeline.report.repeats import verdict, with_repeats

AXES, KEYS = ["mode"], ["phase"]


def rows(**medians_ms):
    """Make a row per mode and repeat, of samples close to the median."""
    lines = [
        {"mode": mode, "phase": "step", "repeat": repeat, "status": "ok", "median_ms": median_ms}
        | {"samples_ms": [median_ms + place / 1e4 for place in range(-5, 6)]}
        for mode, repeats in medians_ms.items()
        for repeat, median_ms in enumerate(repeats, start=1)
    ]
    return pd.DataFrame(lines)


def by_mode(shown):
    return shown.set_index("mode").loc


def test_the_middle_repeat_is_shown_and_all_of_them_judge():
    shown = with_repeats(rows(eager=(10.1, 10.0, 9.9), compiled=(8.0, 8.1, 7.9), graph=(9.9, 10.1, 10.0)), AXES, KEYS)
    assert list(shown["median_ms"]) == [10.0, 8.0, 10.0]
    assert verdict(by_mode(shown)["eager"], by_mode(shown)["compiled"]).word == FASTER
    assert verdict(by_mode(shown)["eager"], by_mode(shown)["graph"]).ratio == pytest.approx(1)


def test_all_rows_of_a_cell_are_of_one_repeat_with_times():
    step = rows(eager=(12.0, 10.0, 11.0), graph=(7.0, 6.0)).assign(phase="step")
    forward = step.assign(phase="forward", median_ms=[1.0, 1.1, 1.2, 2.0, 2.1])
    every = pd.concat([step, forward], ignore_index=True)
    every.loc[(every["mode"] == "graph") & (every["repeat"] == 1), ["status", "median_ms"]] = ["skipped", None]
    shown = with_repeats(every, AXES, KEYS).set_index(["mode", "phase"])
    assert shown["repeat"].to_dict() == {
        ("eager", "step"): 3,
        ("eager", "forward"): 3,
        ("graph", "step"): 2,
        ("graph", "forward"): 2,
    }


def test_repeats_that_lie_close_show_that_two_times_are_the_same():
    shown = with_repeats(rows(eager=(10.0, 10.01, 9.99), graph=(10.0, 10.01, 9.99)), AXES, KEYS)
    assert verdict(by_mode(shown)["eager"], by_mode(shown)["graph"]).word == SAME


def test_a_row_carries_the_least_and_the_most_peak_of_its_repeats():
    every = rows(eager=(10.0, 10.1, 9.9), graph=(8.0, 8.1, 7.9)).assign(peak_bytes=[4, 5, 3, 7, None, 7])
    shown = by_mode(with_repeats(every, AXES, KEYS))
    assert list(shown["eager"][["least_peak_bytes", "most_peak_bytes"]]) == [3, 5]
    assert list(shown["graph"][["least_peak_bytes", "most_peak_bytes"]]) == [7, 7]


def test_rows_without_a_phase_or_a_clock_pool_the_spread_of_their_repeats():
    shown = with_repeats(rows(eager=(10.0, 10.1, 9.9), compiled=(8.0, 8.1, 7.9)).drop(columns="phase"), AXES, [])
    assert verdict(by_mode(shown)["eager"], by_mode(shown)["compiled"]).word == FASTER


@pytest.mark.parametrize("drop", [["repeat"], []])
def test_without_repeats_there_is_a_ratio_and_no_verdict(drop):
    shown = with_repeats(rows(eager=[10.0], compiled=[5.0]).drop(columns=drop), AXES, KEYS)
    judged = verdict(by_mode(shown)["eager"], by_mode(shown)["compiled"])
    assert (judged.ratio, judged.word) == (0.5, None)
    assert trust.of_rows(shown) == {}


@pytest.mark.parametrize(("highest", "status"), [(10.4, "ok"), (10.6, "unstable")])
def test_a_figure_whose_repeats_lie_further_apart_than_the_limit_is_unstable(highest, status):
    shown = with_repeats(rows(eager=(10.0, highest, 10.2)).assign(setting_unstable_rel_error=0.05), AXES, KEYS)
    assert list(shown["status"]) == [status]
    if status == "unstable":
        assert list(shown["reason"]) == ["repeats take 10.0 ms to 10.6 ms"]


@pytest.mark.parametrize(("step_ms", "status"), [(100.0, "ok"), (10.0, "unstable")])
def test_a_phase_is_unstable_only_where_its_repeats_differ_by_what_its_step_would_notice(step_ms, status):
    step = rows(eager=(step_ms,) * 3).assign(phase="train_step")
    wait = rows(eager=(0.2, 0.6, 0.3)).assign(phase="communication")  # 0.4 ms apart: a fifth of 5% of the step is 1 ms
    both = pd.concat([step, wait], ignore_index=True)
    shown = with_repeats(both.assign(setting_unstable_rel_error=0.05), AXES, KEYS)
    assert shown.set_index("phase")["status"].to_dict() == {"train_step": "ok", "communication": status}


def test_an_unstable_repeat_contradicts_stable_ones():
    wild = rows(eager=(10.0, 10.0, 14.0), compiled=(5.0, 5.01, 4.99)).assign(setting_unstable_rel_error=0.05)
    wild.loc[wild["median_ms"] == 14.0, "status"] = "unstable"
    shown = with_repeats(wild, AXES, KEYS)
    assert by_mode(shown)["eager"]["reason"] == "repeats take 10.0 ms to 14.0 ms"
    assert list(shown["status"]) == ["unstable", "ok"]
    assert trust.of_rows(shown)["unstable_most_pct"] == pytest.approx(40)


def test_repeats_that_contradict_each_other_do_not_blur_the_other_figures():
    wild = rows(eager=(10.0, 14.0, 10.0), compiled=(5.0, 5.01, 4.99), graph=(6.0, 6.01, 5.99))
    shown = with_repeats(wild.assign(setting_unstable_rel_error=0.05), AXES, KEYS)
    assert verdict(by_mode(shown)["graph"], by_mode(shown)["compiled"]).word == FASTER
    assert trust.of_rows(shown)["unstable"] == 1
    assert trust.of_rows(shown)["most_pct"] < 1


def test_what_has_no_clock_because_it_was_skipped_disturbs_no_other():
    timed = rows(eager=(10.0, 10.1, 9.9), graph=(8.0, 8.1, 7.9)).assign(clock="host")
    skipped = rows(compiled=(5.0, 5.0, 5.0)).assign(status="skipped", clock=None, samples_ms=None, median_ms=None)
    both = pd.concat([timed, skipped], ignore_index=True).assign(setting_unstable_rel_error=0.05)
    shown = with_repeats(both, AXES, [*KEYS, "clock"])
    assert verdict(by_mode(shown)["eager"], by_mode(shown)["graph"]).word == FASTER
