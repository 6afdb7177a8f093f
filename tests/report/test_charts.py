import json
import re

import pandas as pd
import pytest

from pipeline.report import svg
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.html.vega_lite import specification

MARKS = ("bar", "stack", "strip", "line", "point")


def rows():
    return pd.DataFrame(
        [
            {"shape": f"shape {n}", "n": n, "who": who, "rate": rate, "words": f"{rate:g} TFLOP/s", "status": status}
            for n in (512, 1024)
            for who, rate, status in (("ours", 2.0 * n, "ok"), ("torch", 1.5 * n, "unstable"))
        ]
    )


def chart(mark="bar", table=None, **more):
    table = rows() if table is None else table
    if mark in ("bar", "stack", "strip"):
        axes = {"x": Axis("rate", "TFLOP/s"), "y": Axis("shape")}
    else:
        axes = {"x": Axis("n", "length", log=True), "y": Axis("rate", "TFLOP/s")}
    return Chart("rates", "Rates", table, mark, **axes, colour="who", **more)


def drawn(chart, tmp_path):
    svg.draw(chart, tmp_path / "a.svg")
    return (tmp_path / "a.svg").read_text()


def texts(drawing):
    return re.findall(r">([^<>]+)</text>", drawing)


@pytest.mark.parametrize("mark", MARKS)
def test_a_chart_is_drawn_twice_with_its_names_and_titles(mark, tmp_path):
    both = chart(mark, label="words" if mark in ("bar", "point") else "", hover={"how fast": "words"})
    words = texts(drawn(both, tmp_path))
    assert {"ours", "torch", "TFLOP/s"} <= {*words}
    data = json.dumps(specification(both), allow_nan=False)
    assert all(word in data for word in ("ours", "torch", "TFLOP/s", "1024"))


@pytest.mark.parametrize("mark", MARKS)
def test_it_is_drawn_again_as_the_same_bytes(mark, tmp_path):
    assert drawn(chart(mark), tmp_path) == drawn(chart(mark), tmp_path)


@pytest.mark.parametrize("mark", MARKS)
def test_a_name_has_one_colour_in_both_drawings(mark, tmp_path):
    layers = specification(chart(mark))["layer"]
    scale = next(
        layer["encoding"]["color"]["scale"] for layer in layers if "scale" in layer["encoding"].get("color", {})
    )
    drawing = drawn(chart(mark), tmp_path).lower()
    assert all(colour.lower() in drawing for colour in scale["range"])


def test_a_bar_without_a_value_tells_its_outcome(tmp_path):
    table = rows()
    table.loc[0, ["rate", "status"]] = [float("nan"), "oom"]
    both = chart(table=table, label="words")
    assert "OOM" in texts(drawn(both, tmp_path))
    assert "OOM" in [row["_outcome"] for row in specification(both)["data"]["values"]]


def test_each_panel_is_drawn_and_can_be_chosen(tmp_path):
    both = chart("line", panel="status")
    assert {"ok", "unstable"} <= {*texts(drawn(both, tmp_path))}
    assert specification(both)["params"][0]["bind"]["options"] == ["ok", "unstable"]


def test_a_limit_is_named_in_both_drawings(tmp_path):
    both = chart(limits=[Limit(3000.0, "the peak")])
    assert "the peak" in texts(drawn(both, tmp_path))
    assert "the peak" in json.dumps(specification(both))


def test_lengths_that_are_powers_of_two_have_a_tick_each(tmp_path):
    assert {"512", "1024"} <= {*texts(drawn(chart("line"), tmp_path))}


def test_points_at_one_place_have_their_names_apart(tmp_path):
    table = pd.DataFrame(
        {"n": [1.0, 1.0, 1.001], "rate": [1.0, 1.0, 1.0], "who": ["a", "b", "c"], "words": ["first", "second", "third"]}
    )
    figure = svg._figure(chart("point", table, label="words"))
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == 3
    assert not any(a.overlaps(b) for place, a in enumerate(boxes) for b in boxes[:place])


def test_a_chart_without_values_is_empty():
    table = rows().assign(rate=float("nan"), status="oom")
    assert chart(table=table).is_empty
    assert chart("line", table.head(0)).is_empty
    assert not chart().is_empty


def test_what_a_record_holds_is_text_in_a_drawing(tmp_path):
    drawing = drawn(chart(table=rows().assign(who="<script>$x$")), tmp_path)
    assert "<script>" not in drawing
    assert "&lt;script&gt;$x$" in drawing


def test_lines_stand_behind_points_each_with_its_label(tmp_path):
    found = chart("point", lines={"roof": [(512, 1000.0), (1024, 1000.0)]})
    assert "roof" in texts(drawn(found, tmp_path))
    behind = specification(found)["layer"][0]["data"]["values"]
    assert [tuple(point.values()) for point in behind] == [(512, 1000.0), (1024, 1000.0)]


def test_a_label_stands_half_way_along_its_line_as_it_is_drawn():
    x, y = chart("point").middle([(10, 1.0), (1000, 3.0)])
    assert (x, y) == (pytest.approx(100), 2.0)  # a logarithmic and a linear axis
