import pytest

from pipeline.report.versus import FASTER, SAME, SLOWER, UNDECIDED, judge, shaded, versus
from pipeline.report.versus import beside as beside_base

from .frames import failed, folded, repeated, timed


def beside(*rows, ours="ours", peers=("torch",)):
    return versus(folded(*rows, keys=("name", "shape")), ["shape"], "name", ours, peers)


def verdict(*rows):
    [row] = beside(*(row | {"shape": "x"} for row in rows)).to_dict("records")
    return row


@pytest.mark.parametrize(
    ("ours_ms", "word"),
    [([80.0, 81.0], FASTER), ([125.0, 126.0], SLOWER), ([100.0, 100.1], SAME), ([98.0, 103.0], UNDECIDED)],
)
def test_with_repeats_the_interval_decides(ours_ms, word):
    row = verdict(*repeated("ours", ours_ms), *repeated("torch", [100.0, 100.4]))
    assert row["verdict"] == word
    assert row["low"] <= row["ratio"] <= row["high"]


def test_the_ratio_is_how_many_times_as_fast_ours_is():
    row = verdict(timed("ours", 50.0), timed("torch", 100.0))
    assert row["ratio"] == pytest.approx(2.0)
    assert row["gain"].startswith("2.00× (")


def test_a_chart_draws_undecided_ratios_faint():
    rows = [timed("ours", 50.0, shape="x"), timed("torch", 100.0, shape="x")]
    more = [timed("ours", 97.0, shape="y"), timed("torch", 100.0, shape="y")]
    assert shaded(beside(*rows, *more))["status"].tolist() == ["ok", "unstable"]


@pytest.mark.parametrize(("ours_ms", "word"), [(90.0, FASTER), (110.0, SLOWER), (97.0, UNDECIDED), (100.1, SAME)])
def test_without_repeats_only_a_clear_ratio_is_called(ours_ms, word):
    assert verdict(timed("ours", ours_ms), timed("torch", 100.0))["verdict"] == word


def test_without_repeats_quartiles_that_overlap_decide_nothing():
    wide = timed("torch", 100.0) | {"q1_ms": 80.0, "q3_ms": 120.0}
    assert verdict(timed("ours", 90.0), wide)["verdict"] == UNDECIDED


def test_repeats_that_contradict_each_other_decide_nothing_at_whatever_ratio():
    ways = [*repeated("ours", [324.0, 387.0, 324.0]), *repeated("torch", [310.0, 397.0, 378.0])]
    assert verdict(*ways)["verdict"] == UNDECIDED


def test_a_single_process_is_as_unsure_as_the_repeats_of_its_kind():
    repeats = [
        *repeated("ours", [324.0, 387.0, 324.0], shape="x"),
        *repeated("torch", [310.0, 397.0, 378.0], shape="x"),
    ]
    single = [timed("ours", 300.0, shape="y"), timed("torch", 390.0, shape="y")]
    found = beside(*repeats, *single).set_index("shape")["verdict"]
    assert found["y"] == UNDECIDED


def test_the_fastest_peer_with_figures_is_the_peer():
    rows = [timed("ours", 10.0), timed("torch", 30.0), timed("cuDNN", 20.0), failed("flex")]
    found = beside(*(row | {"shape": "x"} for row in rows), peers=("torch", "cuDNN", "flex"))
    assert list(found["name_peer"]) == ["cuDNN"]


def test_problems_without_figures_of_both_are_left_out():
    rows = [timed("ours", 10.0, shape="x"), failed("torch", shape="x"), timed("torch", 10.0, shape="y")]
    assert beside(*rows).empty


def test_an_unstable_side_leaves_the_ratio_and_takes_the_verdict():
    found = judge({**timed("a", 100.0), "status": "unstable"}, timed("b", 50.0))
    assert (found["ratio"], found["verdict"]) == (pytest.approx(2.0), UNDECIDED)


def test_each_row_stands_beside_the_first_base_of_its_own_group_that_has_figures():
    rows = folded(
        failed("a", case="x"),
        timed("a", 100.0, case="y"),
        timed("b", 50.0, case="x"),
        timed("c", 25.0, case="x"),
        timed("b", 40.0, case="y"),
        keys=("name", "case"),
    )
    found = beside_base(rows, ["case"], rows["name"] != "c").set_index(["name", "case"])
    assert found["ratio"].round(3).dropna().to_dict() == {("c", "x"): 2.0, ("b", "y"): 2.5}
    assert found.loc[("c", "x"), "base"] == found.index.get_loc(("b", "x"))
    assert found["verdict"].isna().tolist() == found["gain"].isna().tolist()
