import json
import re

import pandas as pd
import pytest

from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.drawing import draw, specification

ROWS = pd.DataFrame({"n": [512, 512, 1024, 1024], "who": ["ours", "torch"] * 2, "status": ["ok", "unstable"] * 2})
ROWS = ROWS.assign(rate=[1024.0, 768.0, 2048.0, 1536.0], shape="shape " + ROWS["n"].astype(str))
ROWS = ROWS.assign(words=ROWS["rate"].map("{:g} TFLOP/s".format))


def chart(mark="bar", table=ROWS, **more):
    axes = Axis("rate", "TFLOP/s"), Axis("shape")
    if mark in ("line", "point"):
        axes = Axis("n", "length", log=True), Axis("rate", "TFLOP/s")
    return Chart("rates", "Rates", table, mark, *axes, colour="who", **more)


def drawn(chart, tmp_path):
    draw(chart, tmp_path / "a.svg")
    return (tmp_path / "a.svg").read_text()


def texts(drawing):
    return re.findall(r"<text [^>]*>([^<]+)</text>", drawing)


@pytest.mark.parametrize("mark", ["bar", "stack", "strip", "line", "point"])
def test_both_drawings_have_its_names_and_titles_and_one_colour_a_name_and_the_same_bytes_again(mark, tmp_path):
    both = chart(mark, label="words" if mark in ("bar", "point") else "", hover={"how fast": "words"})
    drawing, specified = drawn(both, tmp_path), specification(both)
    assert {"ours", "torch", "TFLOP/s"} <= {*texts(drawing)}
    assert ({"1024 TFLOP/s", "768 TFLOP/s"} <= {*texts(drawing)}) == bool(both.label)
    assert all(word in json.dumps(specified, allow_nan=False) for word in ("ours", "torch", "TFLOP/s", "how fast"))
    colours = specified["layer"][0]["encoding"]["color"]["scale"]["range"]
    assert len({*colours}) == 2
    assert all(colour in drawing for colour in colours)
    assert drawn(both, tmp_path) == drawing


def test_two_names_of_one_meaning_have_two_colours_and_what_a_record_holds_is_text(tmp_path):
    names = {"ours": "cuDNN", "torch": "FlashAttention-2"}  # of the same colour where either stands alone
    colours = specification(chart(table=ROWS.assign(who=ROWS["who"].map(names))))["layer"][0]["encoding"]["color"]
    assert len({*colours["scale"]["range"]}) == 2
    drawing = drawn(chart(table=ROWS.assign(who="<script>$x$")), tmp_path)
    assert ["<script>" in drawing, "&lt;script&gt;$x$" in drawing] == [False, True]


def test_a_bar_without_a_value_tells_its_outcome_and_what_is_unstable_is_faint(tmp_path):
    table = ROWS.copy()
    table.loc[0, ["rate", "status"]] = [float("nan"), "oom"]
    drawing = drawn(chart(table=table, label="words"), tmp_path)
    assert ["OOM" in texts(drawing), "1024 TFLOP/s" in texts(drawing)] == [True, False]
    assert len(re.findall(r'opacity="0\.45"', drawing)) == 2


def test_each_panel_is_drawn_and_can_be_chosen(tmp_path):
    both = chart("line", panel="status")
    assert {"ok", "unstable"} <= {*texts(drawn(both, tmp_path))}
    assert specification(both)["params"][0]["bind"]["options"] == ["ok", "unstable"]


def test_a_limit_is_named_and_lengths_that_are_powers_of_two_have_a_tick_each(tmp_path):
    limits = [Limit(3000.0, "the peak")]
    assert "the peak" in texts(drawn(chart(limits=limits), tmp_path))
    assert {"the peak", "512", "1,024"} <= {*texts(drawn(chart("line", limits=limits), tmp_path))}


def test_ticks_are_short_where_an_axis_wants_them_so(tmp_path):
    sizes = pd.DataFrame({"size": [8, 10**9], "rate": [1, 2], "who": "ours"})
    for prefixes, tick in ((True, "1G"), (False, "1,000,000,000")):
        axes = Axis("size", log=True, prefixes=prefixes), Axis("rate")
        assert tick in texts(drawn(Chart("rates", "Rates", sizes, "line", *axes, "who"), tmp_path))


def test_an_axis_ends_where_it_says_though_rounding_puts_the_data_a_little_above(tmp_path):
    shares = pd.DataFrame({"who": ["ours", "torch"], "shape": "a", "share": [60.0, 40.0 + 1e-9]})
    for most, ticks in ((None, ["100", "110"]), (100, ["90", "100"])):
        stack = Chart("shares", "Shares", shares, "stack", Axis("share", most=most), Axis("shape"), "who")
        assert texts(drawn(stack, tmp_path))[:-3][-2:] == ticks


def test_a_line_behind_points_carries_its_label(tmp_path):
    behind = chart("point", lines={"as the copy of memory": [(512.0, 600.0), (1024.0, 1200.0)]})
    drawing = drawn(behind, tmp_path)
    # A label stands half way along its line as it is drawn.
    assert (Axis("n", log=True).middle(10, 1000), Axis("n").middle(1.0, 3.0)) == (pytest.approx(100), 2.0)
    assert "as the copy of memory" in texts(drawing)
    assert len(re.findall("mark-line", drawing)) == 1


def test_a_chart_without_values_is_empty():
    assert chart(table=ROWS.assign(rate=float("nan"), status="oom")).is_empty
    assert chart("line", ROWS.head(0)).is_empty
    assert not chart().is_empty
