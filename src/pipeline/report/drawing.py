"""Draw charts by Vega-Lite: as a specification for the page, with values on hover, and as an SVG file."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import vl_convert

from pipeline.report.chart import Axis, Chart
from pipeline.report.look import colour, colours
from pipeline.report.table import OUTCOME_WORDS

Spec = dict[str, Any]
VERSION = "6.4"
WIDTH_PX, HEIGHT_PX, BAR_PX, STACK_PX = 620, 300, 14, 26
# Around a drawing that is a file: who looks at it may lack the font that it was measured with, and have a wider one.
ROOM_PX = {"left": 30, "right": 30, "top": 5, "bottom": 5}
FAINT, MOST_TICKS, MOST_POINTS = 0.45, 14, 60
# Columns of data that marks add: words beside them, the place in a stack, what hover tells.
WORDS, PLACE, TOLD = "_words", "_place", "_told"
MUTED = "#5b6570"
# The theme of Vega-Lite. Not `aria`: the page names a chart as a whole.
CONFIG = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
DARK = "<style>@media (prefers-color-scheme: dark) {svg {filter: invert(0.93) hue-rotate(180deg)}}</style>"
TAG, LONG_NUMBER = re.compile(r"<[^>]+>"), re.compile(r"(\.\d\d)\d+")


def specification(chart: Chart) -> Spec:
    """Return the specification of a chart for the page, which JSON can hold; of panels one is shown, and chosen."""
    view: Spec = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    if chart.panel:
        options = [str(name) for name in chart.drawn[chart.panel].unique()]
        bind = {"input": "select", "options": options, "name": "shown "}
        view["params"] = [{"name": "panel", "value": options[0], "bind": bind}]
        view["transform"] = [{"filter": f"toString(datum['{chart.panel}']) === panel"}]
    return {**view, **_view(chart, _looks(chart), is_still=False), "config": CONFIG}


def draw(chart: Chart, path: Path) -> None:
    """Write a chart that is not empty as SVG, its panels below each other; raises OSError where it cannot."""
    looks, panels = _looks(chart), chart.drawn.groupby(chart.panel, sort=False) if chart.panel else [("", chart.drawn)]
    views = [
        {"title": str(name), "width": WIDTH_PX, **_view(replace(chart, rows=own, panel=""), looks, is_still=True)}
        for name, own in panels
    ]
    drawing = vl_convert.vegalite_to_svg({"vconcat": views, "padding": ROOM_PX, "config": CONFIG}, vl_version=VERSION)
    # Coordinates to a hundredth, and dark on a dark screen.
    rounded = TAG.sub(lambda tag: LONG_NUMBER.sub(r"\1", tag[0]), drawing)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(rounded.replace(">", f">{DARK}", 1) + "\n", encoding="utf-8")


@cache
def library() -> str:
    """Return the script that draws specifications in a page, as `vegaEmbed`; to bundle it takes two seconds."""
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VERSION)
    return f"(() => {{{bundle}}})();"


def _looks(chart: Chart) -> dict[str, str]:
    return colours(dict.fromkeys(chart.drawn[chart.colour].astype(str))) if chart.colour else {}


def _view(chart: Chart, looks: Mapping[str, str], is_still: bool) -> Spec:
    height: Any = HEIGHT_PX
    if chart.is_horizontal:
        height = {"step": BAR_PX if chart.mark == "bar" else STACK_PX}
        height |= {"for": "offset"} if chart.mark == "bar" and chart.colour else {}
    layers = [*_lines_behind(chart), *_layers(chart, looks, is_still), *_limits(chart)]
    return {"height": height, "data": {"values": _values(chart, looks)}, "layer": layers}


def _values(chart: Chart, looks: Mapping[str, str]) -> list[Spec]:
    """Return the rows of a chart with the columns that it shows, as data for JSON."""
    drawn = chart.drawn
    lacks = drawn[chart.x.column].isna()
    outcomes = drawn["status"].map(OUTCOME_WORDS) if "status" in drawn else pd.Series("", index=drawn.index)
    drawn = drawn.assign(**{WORDS: outcomes.where(lacks, drawn[chart.label].astype(str) if chart.label else "")})
    drawn[TOLD] = list(_told(chart, drawn))
    if chart.mark == "bar":
        drawn[chart.x.column] = drawn[chart.x.column].astype(float).fillna(0.0)
    elif chart.mark == "stack":
        drawn[PLACE] = drawn[chart.colour].astype(str).map([*looks].index)
    own = [chart.x.column, chart.y.column, chart.colour, chart.panel, chart.low, chart.high]
    shown = [name for name in dict.fromkeys([*own, "status", WORDS, PLACE, TOLD]) if name and name in drawn]
    return json.loads(drawn[shown].to_json(orient="records", double_precision=9))


def _told(chart: Chart, drawn: pd.DataFrame) -> Iterator[dict[str, str]]:
    """Tell of each mark what it is of and its value; then what the chart adds, and the outcome."""
    own = [chart.y, chart.x] if chart.is_horizontal else [chart.x, chart.y]
    titles = {axis.title or axis.column.replace("_", " "): axis.column for axis in own}
    titles |= {"of": chart.colour} if chart.colour else {}
    titles |= dict(chart.hover) | ({"outcome": "status"} if "status" in drawn else {})
    for row in drawn[list(dict.fromkeys(titles.values()))].to_dict("records"):
        yield {title: _four_digits(row[name]) for title, name in titles.items()}


def _four_digits(value: Any) -> str:
    """Write a number to four digits, a text as it is, nothing where there is none."""
    if isinstance(value, str):
        return value
    return "" if pd.isna(value) else f"{float(f'{value:.4g}'):,.10g}"


def _layers(chart: Chart, looks: Mapping[str, str], is_still: bool) -> list[Spec]:
    """Return the marks of a chart and the words beside them."""
    powers = _powers(chart) if not chart.is_horizontal else None
    place = {"x": _numbers(chart.x, powers), "y": _names(chart) if chart.is_horizontal else _numbers(chart.y)}
    coloured = {**place, **_colour(chart, looks)}
    faint = {"condition": {"test": "datum.status === 'unstable'", "value": FAINT}, "value": 1}
    seen: Spec = {**coloured, "opacity": faint, "tooltip": {"field": TOLD, "type": "nominal"}}
    words: Spec = {**place, "text": {"field": WORDS}}
    beside = {"type": "text", "align": "left", "dx": 4}
    shape = {"field": chart.colour, "scale": {"domain": [*looks]}, "legend": {"title": None}}
    shapes = {"shape": shape} if looks else {}
    dots = {"type": "point", "filled": True}
    match chart.mark:
        case "bar":
            order = {"field": chart.colour, "sort": [*looks], "scale": {"paddingInner": 0.1}}
            side = {"yOffset": order} if chart.colour else {}
            return [{"mark": "bar", "encoding": seen | side}, {"mark": beside, "encoding": words | side}]
        case "stack":
            order = {"field": PLACE, "type": "quantitative"}
            return [{"mark": "bar", "encoding": {**seen, "x": {**place["x"], "stack": "zero"}, "order": order}}]
        case "strip":
            return [{"mark": {**dots, "size": 45, "opacity": 0.6}, "encoding": {**seen, "opacity": {"value": 0.6}}}]
        case "line":
            ends = {"y": {**place["y"], "field": chart.low}, "y2": {"field": chart.high}}
            many = len(chart.drawn) > MOST_POINTS * max(1, len(looks))
            points = {"mark": {**dots, "size": 12 if many else 60}, "encoding": seen | shapes}
            bars = [{"mark": "rule", "encoding": {**coloured, **ends}}] if chart.low else []
            return [{"mark": "line", "encoding": coloured}, *bars, *([] if many and is_still else [points])]
        case "point":
            named = [{"mark": {**beside, "dx": 7}, "encoding": words}] if chart.label else []
            return [{"mark": {**dots, "size": 80}, "encoding": seen | shapes}, *named]


def _limits(chart: Chart) -> Iterator[Spec]:
    across, along, axis, start = ("x", "y", chart.x, 0) if chart.is_horizontal else ("y", "x", chart.y, "width")
    for limit in chart.limits:
        data = {"values": [{"value": limit.value, "label": limit.label}]}
        at = {across: {**_numbers(axis), "field": "value"}}
        edge = {along: {"value": start}, "text": {"field": "label"}}
        yield {"data": data, "mark": {"type": "rule", "strokeDash": [2, 3]}, "encoding": at}
        yield {"data": data, "mark": {"type": "text", "align": "right", "dy": -6}, "encoding": {**at, **edge}}


def _lines_behind(chart: Chart) -> Iterator[Spec]:
    axes, place = (chart.x, chart.y), {"x": _numbers(chart.x), "y": _numbers(chart.y)}
    line, words = {"type": "line", "strokeDash": [2, 3], "color": MUTED}, {"type": "text", "align": "right", "dy": -8}
    for label, points in chart.lines.items():
        ends = [{axis.column: value for axis, value in zip(axes, point, strict=True)} for point in points]
        middle = {axis.column: axis.middle(ends[0][axis.column], ends[-1][axis.column]) for axis in axes}
        yield {"data": {"values": ends}, "mark": line, "encoding": place}
        told = {"data": {"values": [{**middle, "label": label}]}, "mark": words}
        yield {**told, "encoding": {**place, "text": {"field": "label"}}}


def _names(chart: Chart) -> Spec:
    order = list(dict.fromkeys(chart.drawn[chart.y.column].astype(str)))
    axis = {"grid": False, "ticks": False, "domain": False}
    return {"field": chart.y.column, "type": "nominal", "sort": order, "title": None, "axis": axis}


def _numbers(axis: Axis, powers: list[float] | None = None) -> Spec:
    scale: Spec = {"type": "log", "nice": False, "padding": 14} if axis.log else {"zero": axis.zero}
    scale |= {"domainMax": axis.most} if axis.most is not None else {}
    ticks: Spec = {"values": powers, "format": ",~r"} if powers else {}
    ticks |= {"format": "~s"} if axis.prefixes else {}
    told = {"axis": ticks} if ticks else {}
    return {"field": axis.column, "type": "quantitative", "title": axis.title, "scale": scale, **told}


def _powers(chart: Chart) -> list[float] | None:
    """Return the ticks of a logarithmic x axis of few values: these values."""
    values = sorted({float(value) for value in chart.drawn[chart.x.column]})
    return values if chart.x.log and len(values) <= MOST_TICKS and not chart.lines else None


def _colour(chart: Chart, looks: Mapping[str, str]) -> Spec:
    if not looks:
        return {"color": {"value": colour("ours")}}
    scale = {"domain": [*looks], "range": [*looks.values()]}
    return {"color": {"field": chart.colour, "type": "nominal", "scale": scale, "legend": {"title": None}}}
