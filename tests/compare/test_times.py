import numpy as np
import pytest

from pipeline.cells.record import SCHEMA_VERSION
from pipeline.compare.judge import compare_runs
from pipeline.compare.text import summary, write_comparison
from pipeline.compare.times import QUARTILES, REPEATS, UNJUDGED, WITHIN
from pipeline.report.intervals import FASTER, SAME, SLOWER
from pipeline.registry import stages

from ..records import CPU, as_read, failed_row, record, timed_row

SIZES = ("small", "medium", "large", "xl")
SPREAD = 0.002
# Axes that the records here lack, as those of earlier versions do.
LATER = "context_length=256 batch_size=4 warmup_steps=5 mode=eager"


def run(factor=1.0, repeats=3, seed=0, phases=("train_step",), **columns):
    """Every size that often, each process with an error of its own beside that of its samples."""
    rng = np.random.default_rng(seed)
    records = []
    for size in SIZES:
        for repeat in range(1, repeats + 1):
            own_ms = 10 * factor * np.exp(SPREAD * rng.standard_normal())
            rows = [
                as_read(timed_row(name, (own_ms * (1 + 0.001 * rng.standard_normal(20))).tolist())) | columns
                for name in phases
            ]
            records.append(of_cell(size, repeat, rows))
    return records


def of_cell(size, repeat, rows):
    cell = {"precision": "bf16", "size": size, "repeat": repeat}
    machine = CPU | {"kind": "NVIDIA H200", "os": "an OS", "threads": 2, "gpus": [{}]}
    return record(schema_version=SCHEMA_VERSION, cell=cell, rows=rows, machine=machine)


def compared(a, b, tolerance=0.05):
    return compare_runs(a, b, stages(), tolerance)


@pytest.mark.parametrize(("factor", "word"), [(1.03, SLOWER), (0.97, FASTER), (1.0, SAME)])
def test_repeats_tell_differences_that_the_tolerance_would_pass_over(factor, word):
    timed = compared(run(), run(factor, seed=1)).timed
    assert set(timed["verdict"]) == {word}
    assert set(timed["rule"]) == {REPEATS}
    assert len(timed) == len(SIZES)  # the repeats of a cell are one figure
    assert (timed["low"] < timed["ratio"]).all()
    assert timed["ratio"].to_numpy() == pytest.approx(factor, rel=0.01)


def test_without_repeats_the_tolerance_judges():
    for factor, word in ((1.03, WITHIN), (1.2, SLOWER), (1 / 1.2, FASTER)):
        timed = compared(run(repeats=1), run(factor, repeats=1, seed=1)).timed
        assert set(timed["verdict"]) == {word}
        assert set(timed["rule"]) == {QUARTILES}


def test_repeats_of_one_run_say_how_far_those_of_the_other_may_lie_apart():
    timed = compared(run(), run(1.03, repeats=1, seed=1)).timed
    assert set(timed["rule"]) == {REPEATS}
    assert set(timed["verdict"]) == {SLOWER}


def test_repeats_of_another_phase_say_nothing():
    timed = compared(run(phases=["forward"]), run(repeats=1, phases=["train_step"])).timed
    assert timed.empty
    both = [*run(phases=["forward"])[:-1], *run(repeats=1, phases=["forward", "train_step"])[-1:]]
    timed = compared(both, run(repeats=1, phases=["forward", "train_step"])).timed.set_index("row")["rule"]
    assert set(timed["forward host"]) == {REPEATS}
    assert timed["train_step host"] == QUARTILES


def test_times_whose_samples_are_not_kept_are_judged_by_the_tolerance():
    more = {"median_call_ms": 3.0, "q1_call_ms": 2.9, "q3_call_ms": 3.1}
    timed = compared(run(**more), run(**more)).timed.set_index("quantity")["rule"]
    assert set(timed["call_ms"]) == {QUARTILES}
    assert set(timed["ms"]) == {REPEATS}


def test_a_figure_whose_repeats_contradict_each_other_is_unstable_and_blurs_no_other():
    base, other = run(), run(1.03, seed=1)
    for key in ("median_ms", "q1_ms", "q3_ms"):
        base[0]["rows"][0][key] *= 1.5
    both = compared(base, other)
    assert dict(zip(both.timed["cell"].str.contains("size=small"), both.timed["verdict"], strict=True)) == {
        True: UNJUDGED,
        False: SLOWER,
    }
    assert both.outcomes["reason_a"].str.fullmatch(r"repeats take 10\.0 ms to 15\.0 ms").all()


def test_the_gpu_s_work_is_compared_beside_the_wall_time():
    base, other = run(repeats=1, gpu_busy_ms=7.0), run(1.3, repeats=1, seed=1, gpu_busy_ms=7.01)
    verdicts = compared(base, other).timed.groupby("quantity")["verdict"].agg(set)
    assert dict(verdicts) == {"ms": {SLOWER}, "gpu_busy_ms": {WITHIN}}
    slower = compared(base, run(repeats=1, gpu_busy_ms=8.0)).timed.query("quantity == 'gpu_busy_ms'")
    assert set(slower["verdict"]) == {SLOWER}


def test_unstable_figures_are_neither_faster_nor_slower():
    assert set(compared(run(), run(1.03, seed=1, status="unstable")).timed["verdict"]) == {UNJUDGED}


def test_a_run_fails_where_a_time_is_slower_by_more_than_the_tolerance():
    a, b = run(), run(1.03, seed=1)
    assert not compared(a, b, tolerance=0.05).is_worse
    assert compared(a, b, tolerance=0.01).is_worse
    assert not compared(b, a, tolerance=0.01).is_worse


def test_a_repeat_without_a_figure_is_a_figure_lost_and_the_others_are_compared():
    b = run(seed=1)
    b[0] = of_cell("small", 1, [failed_row("oom", phase="train_step")])
    comparison = compared(run(), b)
    assert comparison.outcomes[["status_a", "status_b"]].to_numpy().tolist() == [["ok", "oom"]]
    assert (comparison.figures_lost, len(comparison.timed)) == (1, len(SIZES))


def test_cells_are_named_without_their_repeats_and_only_once():
    comparison = compared(run(repeats=2), [each for each in run() if each["cell"]["size"] != "xl"])
    assert list(comparison.only_in_a["cell"]) == [f"precision=bf16 size=xl {LATER}"]
    assert comparison.only_in_b.empty


def test_peaks_of_repeats_are_one_peak_the_highest():
    a, b = run(peak_bytes=10**9), run(peak_bytes=10**9)
    a[0]["rows"][0]["peak_bytes"] = 2 * 10**9
    comparison = compared(a, b)
    assert comparison.memory[["cell", "a", "b"]].to_numpy().tolist() == [
        [f"precision=bf16 size=small {LATER}", 2e9, 1e9]
    ]


def test_the_text_says_by_which_rule():
    text = write_comparison(compared(run(), run(1.03, repeats=2, seed=1)), "one", "other")
    assert text.count("| 95% interval, 3 and 2 processes |") == len(SIZES)
    assert "4 median times in both, 4 slower;" in text.splitlines()[-1]
    alone = compared(run(repeats=1), run(1.2, repeats=1, seed=1))
    assert "| quartiles " in write_comparison(alone, "one", "other")
    assert "4 median times in both, 4 slower;" in summary(alone)


def test_a_cell_of_an_earlier_version_is_that_with_the_defaults_of_later_axes():
    later = run(repeats=1, seed=1)
    for each in later:
        each["cell"] |= {"mode": "eager"}
    assert len(compared(run(repeats=1), later).timed) == len(SIZES)
    for each in later:
        each["cell"]["mode"] = "compiled"
    assert compared(run(repeats=1), later).timed.empty
