import math
from collections import Counter

import numpy as np
import pytest

from pipeline.report.versus import (
    FASTER,
    SAME,
    SLOWER,
    UNDECIDED,
    against_base,
    compare_samples,
    median_interval,
    shaded,
    versus,
)
from pipeline.statistics.medians import RepeatSpread

from ..statistics.samples import process
from .frames import failed, folded, repeated, timed

QUIET = RepeatSpread(0.001, 20)
STEADY = [[10.0, 10.01, 9.99, 10.02, 9.98] * 4]
APART = [*repeated("ours", [324.0, 387.0, 324.0]), *repeated("torch", [310.0, 397.0, 378.0])]


def compared(*rows, ours="ours", peers=("torch",)):
    return versus(folded(*rows, keys=("name", "shape")), ["shape"], "name", ours, peers)


def verdict(*rows):
    [row] = compared(*({"shape": "x"} | row for row in rows)).to_dict("records")
    return row


REPEATED = [([80.0, 81.0], FASTER), ([80.0, 81.0, 83.0], FASTER), ([125.0, 126.0], SLOWER)]
REPEATED += [([100.0, 100.1], SAME), ([98.0, 103.0], UNDECIDED)]


@pytest.mark.parametrize(("ours_ms", "word"), REPEATED)
def test_with_repeats_the_interval_decides(ours_ms, word):
    row = verdict(*repeated("ours", ours_ms), *repeated("torch", [100.0, 100.4]))
    assert row["verdict"] == word
    assert row["low"] <= row["ratio"] <= row["high"]
    assert row["ratio"] == pytest.approx(row["median_ms_peer"] / row["median_ms"])  # the medians in the same row
    assert float(row["gain"].partition("× (")[0]) == pytest.approx(row["ratio"], rel=5e-3)
    low, high = median_interval(row)
    assert low < min(ours_ms) < max(ours_ms) < high


@pytest.mark.parametrize(
    ("ours_ms", "word"),
    [(50.0, FASTER), (90.0, FASTER), (110.0, SLOWER), (97.0, UNDECIDED), (103.0, UNDECIDED), (100.1, SAME)],
)
def test_without_repeats_only_a_clear_ratio_is_called_faster_or_slower(ours_ms, word):
    row = verdict(timed("ours", ours_ms), timed("torch", 100.0))
    assert (row["ratio"], row["verdict"]) == (pytest.approx(100 / ours_ms), word)
    assert median_interval(row) == (row["q1_ms"], row["q3_ms"])
    wide = timed("torch", 100.0) | {"q1_ms": ours_ms - 20, "q3_ms": ours_ms + 20}
    assert verdict(timed("ours", ours_ms), wide)["verdict"] == UNDECIDED


def test_single_samples_have_a_ratio_without_an_interval_and_are_undecided():
    single = (timed(name, ms, samples_ms=[ms], q1_ms=ms, q3_ms=ms) for name, ms in (("ours", 10.0), ("torch", 90.0)))
    row = verdict(*single)
    assert (row["ratio"], row["verdict"], row["gain"]) == (pytest.approx(9.0), UNDECIDED, "9.00×")


def test_contradicting_repeats_are_undecided_and_so_is_a_single_process_of_their_kind():
    assert verdict(*APART)["verdict"] == UNDECIDED
    single = [timed("ours", 300.0, shape="y"), timed("torch", 390.0, shape="y")]
    found = compared(*(row | {"shape": "x"} for row in APART), *single).set_index("shape")["verdict"]
    assert found["y"] == UNDECIDED


def test_with_three_repeats_on_both_sides_only_their_own_spread_counts():
    def width(n):
        steady = [*repeated("ours", [90.0, 90.1, 89.9][:n]), *repeated("torch", [100.0, 100.1, 99.9][:n])]
        both = compared(*(row | {"shape": "y"} for row in APART), *(row | {"shape": "x"} for row in steady))
        row = both.set_index("shape").loc["x"]
        assert row["low"] < row["ratio"] < row["high"]
        return row["high"] - row["low"], row["verdict"]

    (two, unsure), (three, sure) = width(2), width(3)
    assert three < 0.02 < 0.2 < two
    assert (unsure, sure) == (UNDECIDED, FASTER)


def test_the_peer_is_the_fastest_with_values_and_problems_without_one_are_left_out():
    rows = [timed("ours", 10.0), timed("torch", 30.0), timed("cuDNN", 20.0), failed("flex")]
    found = compared(*(row | {"shape": "x"} for row in rows), peers=("torch", "cuDNN", "flex"))
    assert list(found["name_peer"]) == ["cuDNN"]
    assert compared(timed("ours", 1.0, shape="x"), failed("torch", shape="x"), timed("torch", 1.0, shape="y")).empty


def test_an_unstable_side_keeps_the_ratio_but_makes_it_undecided_and_faint():
    rows = [timed("ours", 50.0, shape="x"), timed("ours", 50.0, shape="y", status="unstable")]
    rows += [timed("torch", 100.0, shape=shape) for shape in "xy"]
    found = shaded(compared(*rows))[["ratio", "verdict", "status"]].to_numpy().tolist()
    assert found == [[pytest.approx(2.0), FASTER, "ok"], [pytest.approx(2.0), UNDECIDED, "unstable"]]


def test_each_row_is_compared_with_the_first_base_of_its_group_that_has_values():
    of_x = [failed("a", case="x"), timed("b", 50.0, case="x"), timed("c", 25.0, case="x")]
    of_y = [timed("a", 100.0, case="y"), timed("b", 40.0, case="y")]
    rows = folded(*of_x, *of_y, keys=("name", "case"))
    found = against_base(rows, ["case"], rows["name"] != "c").set_index(["name", "case"])
    assert found["ratio"].round(3).dropna().to_dict() == {("c", "x"): 2.0, ("b", "y"): 2.5}
    assert found.loc[("c", "x"), "base"] == found.index.get_loc(("b", "x"))
    assert found["verdict"].isna().tolist() == found["gain"].isna().tolist()


@pytest.mark.parametrize(
    ("factor", "word"),
    [(1.05, SLOWER), (0.95, FASTER), (1.0, SAME), (1.008, SAME), (0.993, SAME), (1.012, SLOWER), (0.988, FASTER)],
)
def test_a_difference_counts_from_one_percent_on(factor, word):
    found = compare_samples(STEADY, [[factor * sample for sample in STEADY[0]]], QUIET)
    assert (found["verdict"], found["ratio"]) == (word, pytest.approx(1 / factor))
    assert found["low"] < found["ratio"] < found["high"]


def test_without_noise_the_interval_is_that_of_the_spread_between_repeats():
    def margins(n):
        found = compare_samples([[10.0] * 10] * n, [[10.3] * 10] * n, RepeatSpread(0.01, 4))
        return *np.log([found["high"] / found["ratio"], found["ratio"] / found["low"]]), found["verdict"]

    margin = 2.776 * 0.01 * math.sqrt(2)  # Student's t, 4 degrees of freedom, from a table
    assert margins(1) == (pytest.approx(margin, rel=1e-3), pytest.approx(margin, rel=1e-3), UNDECIDED)
    assert margins(4)[0] < margins(2)[0] == pytest.approx(margin / math.sqrt(2), rel=1e-3)
    assert compare_samples([[10.0] * 10], [[20.0] * 4], QUIET) is None


# Noise within a process, spread between repeats, drift within a process, samples.
MACHINES = {
    "quiet": (0.005, 0.003, 0.0, 20),
    "drifting": (0.005, 0.003, 0.02, 20),
    "noisy": (0.05, 0.0005, 0.0, 50),
    "few samples": (0.02, 0.003, 0.02, 10),
    "repeats far apart": (0.001, 0.01, 0.0, 20),
    "repeats far apart and noisy": (0.02, 0.01, 0.02, 20),
}
TRIALS = 100


def verdicts(machine, factor):
    """Judge pairs of processes of a machine, given three repeats of eight values of their kind; count the verdicts."""
    noise, between, drift, count = MACHINES[machine]
    generator = np.random.default_rng(list(MACHINES).index(machine))

    def draw(median_ms=1.0):
        return process(generator, median_ms, noise=noise, between=between, drift=drift, count=count)

    def judged():
        repeats = np.log([[np.median(draw()) for _ in range(3)] for _ in range(8)])
        spread = RepeatSpread(math.sqrt(repeats.var(axis=1, ddof=1).mean()), repeats.size - len(repeats))
        return compare_samples([draw()], [draw(factor)], spread)["verdict"]

    return Counter(judged() for _ in range(TRIALS))


WRONG_AND_RIGHT = [(1.0, (FASTER, SLOWER), SAME), (1.005, (FASTER,), None), (1.03, (FASTER, SAME), None)]
WRONG_AND_RIGHT += [(0.95, (SLOWER, SAME), FASTER), (1.05, (FASTER, SAME), SLOWER)]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("factor", "wrong", "right"), WRONG_AND_RIGHT)
def test_few_verdicts_are_wrong_and_on_a_quiet_machine_most_are_right(machine, factor, wrong, right):
    words = verdicts(machine, factor)
    assert sum(words[word] for word in wrong) <= TRIALS / 20
    if right and machine == "quiet":
        assert words[right] >= 0.8 * TRIALS
