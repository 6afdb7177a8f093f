"""Draw charts with Vega-Lite: as a specification for the page, with values on hover, and as an SVG file."""

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
# Padding of SVG files: the viewer's font may be wider than the one used for the layout.
PAD_PX = {"left": 30, "right": 30, "top": 5, "bottom": 5}
FAINT, MOST_TICKS, MOST_POINTS = 0.45, 14, 60
# Columns added to the data: text beside marks, place in a stack, hover text.
WORDS, PLACE, HOVER = "_words", "_place", "_told"
MUTED = "#5b6570"
# The theme of Vega-Lite. `aria` is off, because the page labels each chart as a whole.
CONFIG = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
DARK = "<style>@media (prefers-color-scheme: dark) {svg {filter: invert(0.93) hue-rotate(180deg)}}</style>"
TAG, LONG_NUMBER = re.compile(r"<[^>]+>"), re.compile(r"(\.\d\d)\d+")


def specification(chart: Chart) -> Spec:
    """Return the specification of a chart for the page, as JSON data; of its panels, a menu shows one at a time."""
    view: Spec = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    if chart.panel:
        options = [str(name) for name in chart.drawn[chart.panel].unique()]
        bind = {"input": "select", "options": options, "name": "shown "}
        view["params"] = [{"name": "panel", "value": options[0], "bind": bind}]
        view["transform"] = [{"filter": f"toString(datum['{chart.panel}']) === panel"}]
    return {**view, **_view(chart, _palette(chart), is_static=False), "config": CONFIG}


def draw(chart: Chart, path: Path) -> None:
    """Write a non-empty chart as SVG, its panels one below the other; raises OSError if it cannot be written."""
    palette, panels = (
        _palette(chart),
        chart.drawn.groupby(chart.panel, sort=False) if chart.panel else [("", chart.drawn)],
    )
    views = [
        {"title": str(name), "width": WIDTH_PX, **_view(replace(chart, rows=rows, panel=""), palette, is_static=True)}
        for name, rows in panels
    ]
    drawing = vl_convert.vegalite_to_svg({"vconcat": views, "padding": PAD_PX, "config": CONFIG}, vl_version=VERSION)
    # Round coordinates to a hundredth, and invert colours in dark mode.
    rounded = TAG.sub(lambda tag: LONG_NUMBER.sub(r"\1", tag[0]), drawing)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(rounded.replace(">", f">{DARK}", 1) + "\n", encoding="utf-8")


@cache
def library() -> str:
    """Return the script that gives a page `vegaEmbed`, which draws specifications; bundling takes two seconds."""
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VERSION)
    return f"(() => {{{bundle}}})();"


def _palette(chart: Chart) -> dict[str, str]:
    return colours(dict.fromkeys(chart.drawn[chart.colour].astype(str))) if chart.colour else {}


def _view(chart: Chart, palette: Mapping[str, str], is_static: bool) -> Spec:
    height: Any = HEIGHT_PX
    if chart.is_horizontal:
        height = {"step": BAR_PX if chart.mark == "bar" else STACK_PX}
        height |= {"for": "offset"} if chart.mark == "bar" and chart.colour else {}
    layers = [*_lines_behind(chart), *_layers(chart, palette, is_static), *_limits(chart)]
    return {"height": height, "data": {"values": _values(chart, palette)}, "layer": layers}


def _values(chart: Chart, palette: Mapping[str, str]) -> list[Spec]:
    """Return the rows of a chart as JSON data, with only the columns that it shows."""
    drawn = chart.drawn
    is_missing = drawn[chart.x.column].isna()
    outcomes = drawn["status"].map(OUTCOME_WORDS) if "status" in drawn else pd.Series("", index=drawn.index)
    drawn = drawn.assign(**{WORDS: outcomes.where(is_missing, drawn[chart.label].astype(str) if chart.label else "")})
    drawn[HOVER] = list(_hover_texts(chart, drawn))
    if chart.mark == "bar":
        drawn[chart.x.column] = drawn[chart.x.column].astype(float).fillna(0.0)
    elif chart.mark == "stack":
        drawn[PLACE] = drawn[chart.colour].astype(str).map([*palette].index)
    columns = [chart.x.column, chart.y.column, chart.colour, chart.panel, chart.low, chart.high]
    shown = [name for name in dict.fromkeys([*columns, "status", WORDS, PLACE, HOVER]) if name and name in drawn]
    return json.loads(drawn[shown].to_json(orient="records", double_precision=9))


def _hover_texts(chart: Chart, drawn: pd.DataFrame) -> Iterator[dict[str, str]]:
    """Yield the hover text of each mark by title: its axes and colour, the chart's `hover` columns, its outcome."""
    own = [chart.y, chart.x] if chart.is_horizontal else [chart.x, chart.y]
    titles = {axis.title or axis.column.replace("_", " "): axis.column for axis in own}
    titles |= {"of": chart.colour} if chart.colour else {}
    titles |= dict(chart.hover) | ({"outcome": "status"} if "status" in drawn else {})
    for row in drawn[list(dict.fromkeys(titles.values()))].to_dict("records"):
        yield {title: _four_digits(row[name]) for title, name in titles.items()}


def _four_digits(value: Any) -> str:
    """Write a number to four digits, a text as it is, a missing value as an empty text."""
    if isinstance(value, str):
        return value
    return "" if pd.isna(value) else f"{float(f'{value:.4g}'):,.10g}"


def _layers(chart: Chart, palette: Mapping[str, str], is_static: bool) -> list[Spec]:
    """Return the marks of a chart and the text beside them."""
    powers = _powers(chart) if not chart.is_horizontal else None
    position = {"x": _numbers(chart.x, powers), "y": _names(chart) if chart.is_horizontal else _numbers(chart.y)}
    coloured = {**position, **_colour(chart, palette)}
    faint = {"condition": {"test": "datum.status === 'unstable'", "value": FAINT}, "value": 1}
    encoding: Spec = {**coloured, "opacity": faint, "tooltip": {"field": HOVER, "type": "nominal"}}
    text_encoding: Spec = {**position, "text": {"field": WORDS}}
    text_mark = {"type": "text", "align": "left", "dx": 4}
    shape = {"field": chart.colour, "scale": {"domain": [*palette]}, "legend": {"title": None}}
    shapes = {"shape": shape} if palette else {}
    dots = {"type": "point", "filled": True}
    match chart.mark:
        case "bar":
            order = {"field": chart.colour, "sort": [*palette], "scale": {"paddingInner": 0.1}}
            offset = {"yOffset": order} if chart.colour else {}
            return [
                {"mark": "bar", "encoding": encoding | offset},
                {"mark": text_mark, "encoding": text_encoding | offset},
            ]
        case "stack":
            order = {"field": PLACE, "type": "quantitative"}
            return [{"mark": "bar", "encoding": {**encoding, "x": {**position["x"], "stack": "zero"}, "order": order}}]
        case "strip":
            return [{"mark": {**dots, "size": 45, "opacity": 0.6}, "encoding": {**encoding, "opacity": {"value": 0.6}}}]
        case "line":
            ends = {"y": {**position["y"], "field": chart.low}, "y2": {"field": chart.high}}
            has_many_points = len(chart.drawn) > MOST_POINTS * max(1, len(palette))
            points = {"mark": {**dots, "size": 12 if has_many_points else 60}, "encoding": encoding | shapes}
            bars = [{"mark": "rule", "encoding": {**coloured, **ends}}] if chart.low else []
            return [{"mark": "line", "encoding": coloured}, *bars, *([] if has_many_points and is_static else [points])]
        case "point":
            named = [{"mark": {**text_mark, "dx": 7}, "encoding": text_encoding}] if chart.label else []
            return [{"mark": {**dots, "size": 80}, "encoding": encoding | shapes}, *named]


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
        text_layer = {"data": {"values": [{**middle, "label": label}]}, "mark": words}
        yield {**text_layer, "encoding": {**place, "text": {"field": "label"}}}


def _names(chart: Chart) -> Spec:
    order = list(dict.fromkeys(chart.drawn[chart.y.column].astype(str)))
    axis = {"grid": False, "ticks": False, "domain": False}
    return {"field": chart.y.column, "type": "nominal", "sort": order, "title": None, "axis": axis}


def _numbers(axis: Axis, powers: list[float] | None = None) -> Spec:
    scale: Spec = {"type": "log", "nice": False, "padding": 14} if axis.log else {"zero": axis.zero}
    scale |= {"domainMax": axis.most} if axis.most is not None else {}
    ticks: Spec = {"values": powers, "format": ",~r"} if powers else {}
    ticks |= {"format": "~s"} if axis.prefixes else {}
    axis_field = {"axis": ticks} if ticks else {}
    return {"field": axis.column, "type": "quantitative", "title": axis.title, "scale": scale, **axis_field}


def _powers(chart: Chart) -> list[float] | None:
    """Return the values of a logarithmic x axis as its ticks if there are few; else None."""
    values = sorted({float(value) for value in chart.drawn[chart.x.column]})
    return values if chart.x.log and len(values) <= MOST_TICKS and not chart.lines else None


def _colour(chart: Chart, palette: Mapping[str, str]) -> Spec:
    if not palette:
        return {"color": {"value": colour("ours")}}
    scale = {"domain": [*palette], "range": [*palette.values()]}
    return {"color": {"field": chart.colour, "type": "nominal", "scale": scale, "legend": {"title": None}}}
