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
def test_both_drawings_have_names_titles_and_one_colour_per_name_reproducibly(mark, tmp_path):
    both = chart(mark, label="words" if mark in ("bar", "point") else "", hover={"how fast": "words"})
    drawing, specified = drawn(both, tmp_path), specification(both)
    assert {"ours", "torch", "TFLOP/s"} <= {*texts(drawing)}
    assert ({"1024 TFLOP/s", "768 TFLOP/s"} <= {*texts(drawing)}) == bool(both.label)
    assert all(word in json.dumps(specified, allow_nan=False) for word in ("ours", "torch", "TFLOP/s", "how fast"))
    colours = specified["layer"][0]["encoding"]["color"]["scale"]["range"]
    assert len({*colours}) == 2
    assert all(colour in drawing for colour in colours)
    assert drawn(both, tmp_path) == drawing


def test_names_that_share_a_colour_differ_within_a_chart_and_text_is_escaped(tmp_path):
    names = {"ours": "cuDNN", "torch": "FlashAttention-2"}  # each alone has the same colour
    colours = specification(chart(table=ROWS.assign(who=ROWS["who"].map(names))))["layer"][0]["encoding"]["color"]
    assert len({*colours["scale"]["range"]}) == 2
    drawing = drawn(chart(table=ROWS.assign(who="<script>$x$")), tmp_path)
    assert ["<script>" in drawing, "&lt;script&gt;$x$" in drawing] == [False, True]


def test_a_bar_without_a_value_shows_its_outcome_and_unstable_bars_are_faint(tmp_path):
    table = ROWS.copy()
    table.loc[0, ["rate", "status"]] = [float("nan"), "oom"]
    drawing = drawn(chart(table=table, label="words"), tmp_path)
    assert ["OOM" in texts(drawing), "1024 TFLOP/s" in texts(drawing)] == [True, False]
    assert len(re.findall(r'opacity="0\.45"', drawing)) == 2


def test_each_panel_is_drawn_and_can_be_chosen(tmp_path):
    both = chart("line", panel="status")
    assert {"ok", "unstable"} <= {*texts(drawn(both, tmp_path))}
    assert specification(both)["params"][0]["bind"]["options"] == ["ok", "unstable"]


def test_limits_are_labelled_and_each_of_a_few_lengths_has_a_tick(tmp_path):
    limits = [Limit(3000.0, "the peak")]
    assert "the peak" in texts(drawn(chart(limits=limits), tmp_path))
    assert {"the peak", "512", "1,024"} <= {*texts(drawn(chart("line", limits=limits), tmp_path))}


def test_ticks_are_short_if_the_axis_asks_for_prefixes(tmp_path):
    sizes = pd.DataFrame({"size": [8, 10**9], "rate": [1, 2], "who": "ours"})
    for prefixes, tick in ((True, "1G"), (False, "1,000,000,000")):
        axes = Axis("size", log=True, prefixes=prefixes), Axis("rate")
        assert tick in texts(drawn(Chart("rates", "Rates", sizes, "line", *axes, "who"), tmp_path))


def test_an_axis_ends_at_its_limit_even_if_rounding_exceeds_it(tmp_path):
    shares = pd.DataFrame({"who": ["ours", "torch"], "shape": "a", "share": [60.0, 40.0 + 1e-9]})
    for most, ticks in ((None, ["100", "110"]), (100, ["90", "100"])):
        stack = Chart("shares", "Shares", shares, "stack", Axis("share", most=most), Axis("shape"), "who")
        assert texts(drawn(stack, tmp_path))[:-3][-2:] == ticks


def test_a_line_behind_points_carries_its_label(tmp_path):
    behind = chart("point", lines={"as the copy of memory": [(512.0, 600.0), (1024.0, 1200.0)]})
    drawing = drawn(behind, tmp_path)
    # A label sits at the middle of its line, as drawn.
    assert (Axis("n", log=True).middle(10, 1000), Axis("n").middle(1.0, 3.0)) == (pytest.approx(100), 2.0)
    assert "as the copy of memory" in texts(drawing)
    assert len(re.findall("mark-line", drawing)) == 1


def test_a_chart_without_values_is_empty():
    assert chart(table=ROWS.assign(rate=float("nan"), status="oom")).is_empty
    assert chart("line", ROWS.head(0)).is_empty
    assert not chart().is_empty
