"""Specify a chart for Vega-Lite, with values on hover and a picker for panels."""

import json
from typing import Any

import pandas as pd

from pipeline.report.chart import Axis, Chart
from pipeline.report.look import colours, style
from pipeline.report.table import OUTCOME_WORDS

Spec = dict[str, Any]
# The page's function (page.js) that tells a text as it is and a number to four digits.
TELL = "tell"
# Matplotlib's markers by the names of Vega's.
SHAPES = {"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down", "P": "cross"}
BAR_PX, STACK_PX, HEIGHT_PX = 14, 26, 320
MUTED = "#5b6570"
OUTCOME, FAINT = "_outcome", 0.45


def specification(chart: Chart) -> Spec:
    """Return the specification of a chart with its data, which JSON can hold."""
    layers = [*_lines_behind(chart), *_MARKS[chart.mark](chart), *_limits(chart)]
    pick = _picker(chart) if chart.panel else {}
    step = {"step": BAR_PX if chart.mark == "bar" else STACK_PX}
    height: Any = step if chart.is_horizontal else HEIGHT_PX
    if chart.mark == "bar" and chart.colour:
        height = {"step": BAR_PX, "for": "offset"}
    return {
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "height": height,
        "data": {"values": _values(chart)},
        **pick,
        "layer": layers,
    }


def _values(chart: Chart) -> list[Spec]:
    """Return the rows of a chart with the columns that it shows, as data for JSON."""
    drawn = chart.drawn
    outcomes = drawn["status"].map(OUTCOME_WORDS) if "status" in drawn else pd.Series("", index=drawn.index)
    lacks = drawn[chart.x.column].isna()
    drawn = drawn.assign(**{OUTCOME: outcomes.where(lacks, drawn[chart.label].astype(str) if chart.label else "")})
    if chart.mark == "bar":
        drawn[chart.x.column] = drawn[chart.x.column].astype(float).fillna(0.0)
    fields = [chart.x.column, chart.y.column, chart.colour, chart.label, chart.panel, chart.low, chart.high]
    names = [*fields, *chart.hover.values(), "status", OUTCOME]
    shown = drawn[[name for name in dict.fromkeys(names) if name and name in drawn]]
    return json.loads(shown.to_json(orient="records", double_precision=9))


def _picker(chart: Chart) -> Spec:
    options = [str(name) for name in chart.drawn[chart.panel].unique()]
    bind = {"input": "select", "options": options, "name": "shown "}
    return {
        "params": [{"name": "panel", "value": options[0], "bind": bind}],
        "transform": [{"filter": f"toString(datum['{chart.panel}']) === panel"}],
    }


def _bars(chart: Chart) -> list[Spec]:
    shared: Spec = {"y": _names(chart)}
    if chart.colour:
        order = list(dict.fromkeys(chart.drawn[chart.colour].astype(str)))
        shared["yOffset"] = {"field": chart.colour, "sort": order, "scale": {"paddingInner": 0.1}}
    bars = {**shared, "x": _numbers(chart.x), **_colour(chart), "opacity": _faint(chart), "tooltip": _hover(chart)}
    words = {**shared, "x": _numbers(chart.x), "text": {"field": OUTCOME}}
    return [
        {"mark": "bar", "encoding": bars},
        {"mark": {"type": "text", "align": "left", "dx": 4, "fontSize": 11}, "encoding": words},
    ]


def _stacks(chart: Chart) -> list[Spec]:
    order = {name: place for place, name in enumerate(dict.fromkeys(chart.drawn[chart.colour].astype(str)))}
    encoding = {
        "y": _names(chart),
        "x": {**_numbers(chart.x), "stack": "zero"},
        **_colour(chart),
        "order": {"field": "_place", "type": "quantitative"},
        "tooltip": _hover(chart),
    }
    places = " : ".join(f"datum['{chart.colour}'] === {json.dumps(name)} ? {place}" for name, place in order.items())
    return [
        {"mark": "bar", "transform": [{"calculate": f"{places} : {len(order)}", "as": "_place"}], "encoding": encoding}
    ]


def _lines(chart: Chart) -> list[Spec]:
    shared = {"x": _numbers(chart.x, _powers(chart)), **_colour(chart)}
    y = _numbers(chart.y)
    bands = (
        [{"mark": "rule", "encoding": {**shared, "y": {**y, "field": chart.low}, "y2": {"field": chart.high}}}]
        if chart.low
        else []
    )
    points = {**shared, "y": y, "opacity": _faint(chart), "tooltip": _hover(chart)}
    marks = {"type": "point", "filled": True, "size": 60 if len(chart.drawn) < 300 else 12}
    return [{"mark": "line", "encoding": {**shared, "y": y}}, *bands, {"mark": marks, "encoding": points}]


def _points(chart: Chart) -> list[Spec]:
    shared = {"x": _numbers(chart.x, _powers(chart)), "y": _numbers(chart.y)}
    shape: Spec = {}
    if chart.colour:
        names = list(dict.fromkeys(chart.drawn[chart.colour].astype(str)))
        markers = [SHAPES.get(style(name)["marker"], "circle") for name in names]
        shape = {
            "shape": {"field": chart.colour, "scale": {"domain": names, "range": markers}, "legend": {"title": None}}
        }
    encoding = {**shared, **_colour(chart), **shape, "opacity": _faint(chart), "tooltip": _hover(chart)}
    words = {"mark": {"type": "text", "align": "left", "dx": 7}, "encoding": {**shared, "text": {"field": chart.label}}}
    return [
        {"mark": {"type": "point", "filled": True, "size": 80}, "encoding": encoding},
        *([words] if chart.label else []),
    ]


def _strips(chart: Chart) -> list[Spec]:
    encoding = {"y": _names(chart), "x": _numbers(chart.x), **_colour(chart), "tooltip": _hover(chart)}
    return [{"mark": {"type": "point", "filled": True, "size": 45, "opacity": 0.6}, "encoding": encoding}]


_MARKS = {"bar": _bars, "strip": _strips, "stack": _stacks, "line": _lines, "point": _points}


def _limits(chart: Chart) -> list[Spec]:
    across, along = ("x", "y") if chart.is_horizontal else ("y", "x")
    axis = chart.x if chart.is_horizontal else chart.y
    found = []
    for limit in chart.limits:
        at = {across: {**_numbers(axis), "field": "value"}}
        data = {"values": [{"value": limit.value, "label": limit.label}]}
        told = [{"field": "label", "title": "limit"}, {"field": "value", "title": axis.title, "formatType": TELL}]
        edge = {along: {"value": 0 if chart.is_horizontal else "width"}, "text": {"field": "label"}}
        words = {"type": "text", "align": "right", "dy": -6, "fontSize": 11}
        found += [
            {"data": data, "mark": {"type": "rule", "strokeDash": [2, 3]}, "encoding": {**at, "tooltip": told}},
            {"data": data, "mark": words, "encoding": {**at, **edge}},
        ]
    return found


def _lines_behind(chart: Chart) -> list[Spec]:
    place = {"x": _numbers(chart.x), "y": _numbers(chart.y)}
    found: list[Spec] = []
    for label, points in chart.lines.items():
        ends = [dict(zip((chart.x.column, chart.y.column), point, strict=True)) for point in points]
        middle = dict(zip((chart.x.column, chart.y.column), chart.middle(points), strict=True))
        line, words = {"type": "line", "strokeDash": [2, 3], "color": MUTED}, {"type": "text", "align": "right"}
        text = {"text": {"field": "label"}}
        found += [
            {"data": {"values": ends}, "mark": line, "encoding": place},
            {"data": {"values": [middle | {"label": label}]}, "mark": words | {"dy": -8}, "encoding": place | text},
        ]
    return found


def _names(chart: Chart) -> Spec:
    order = list(dict.fromkeys(chart.drawn[chart.y.column].astype(str)))
    axis = {"grid": False, "ticks": False, "domain": False}
    return {"field": chart.y.column, "type": "nominal", "sort": order, "title": chart.y.title or None, "axis": axis}


def _numbers(axis: Axis, values: list[float] | None = None) -> Spec:
    scale: Spec = {"type": "log", "nice": False, "padding": 14} if axis.log else {"zero": axis.zero}
    if values:
        scale["base"] = 2
    ticks = {"axis": {"values": values, "format": ",~r"}} if values else {}
    return {"field": axis.column, "type": "quantitative", "title": axis.title, "scale": scale, **ticks}


def _powers(chart: Chart) -> list[float] | None:
    """Return the ticks of a logarithmic x axis of few values: these values."""
    values = sorted({float(value) for value in chart.drawn[chart.x.column]})
    return values if chart.x.log and len(values) <= 14 and not chart.lines else None


def _colour(chart: Chart) -> Spec:
    if not chart.colour:
        return {"color": {"value": style("ours")["color"]}}
    found = colours(list(dict.fromkeys(chart.drawn[chart.colour].astype(str))))
    scale = {"domain": list(found), "range": list(found.values())}
    return {"color": {"field": chart.colour, "type": "nominal", "scale": scale, "legend": {"title": None}}}


def _faint(chart: Chart) -> Spec:
    return {"condition": {"test": "datum.status === 'unstable'", "value": FAINT}, "value": 1}


def _hover(chart: Chart) -> list[Spec]:
    """Tell what a mark is of and its value; then what the chart adds, and an outcome other than ok."""
    own = [chart.x, chart.y] if not chart.is_horizontal else [chart.y, chart.x]
    titles = {axis.title or axis.column.replace("_", " "): axis.column for axis in own}
    titles |= {"of": chart.colour} if chart.colour else {}
    titles |= dict(chart.hover) | ({"outcome": "status"} if "status" in chart.rows else {})
    return [{"field": name, "title": title, "formatType": TELL} for title, name in titles.items()]
