"""Interactive charts as data: a Vega-Lite specification and its rows, in the colours of the figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.report.figures import style_for

Spec = Mapping[str, Any]
# Numbers to four digits, without exponents.
DIGITS = ",.4~r"
# The page's function (page.js) that tells a text as it is and a number to four digits.
TELL = "tell"
# Matplotlib's markers by the names of Vega's.
SHAPES = {"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down", "P": "cross"}
BAR_STEP_PX = 13
# What has no meaning of its own (pipeline.report.figures.MEANINGS), the lighter the less.
IDLE_COLOUR, NEUTRAL, STRONG = "#BCC5CE", "#7F8FA6", "#334155"
# Looks of marks.
POINTS, LABELS = {"filled": True, "size": 70}, {"align": "left", "dx": 6}
DASHED, DOTTED = {"strokeDash": [4, 4]}, {"strokeDash": [1, 3]}


@dataclass(frozen=True)
class Chart:
    """A chart of one stage.

    name: where the stage's section has a figure of this name, the chart takes its place and its title. title: what is
    drawn, plain text. spec: a Vega-Lite view without data, layers or a unit. rows: its data, records of texts, finite
    numbers, booleans and None. note: what cannot be drawn, plain text.
    """

    name: str
    title: str
    spec: Spec
    rows: Sequence[Mapping[str, Any]]
    note: str = ""


def mark(kind: str, look: Mapping[str, Any] | None = None, **channels: Any) -> dict[str, Any]:
    """Return a layer of marks of one kind: their look, and what each channel shows."""
    return {"mark": {"type": kind, **(look or {})}, "encoding": channels}


def colours(field: str, names: Sequence[str], title: str | None = None, legend: bool = True) -> dict[str, Any]:
    """Return the channel that gives the names in a field the colours of the figures."""
    return coloured(field, {name: style_for(name)["color"] for name in names}, title, legend)


def coloured(field: str, by_name: Mapping[str, str], title: str | None = None, legend: bool = True) -> dict[str, Any]:
    """Return the channel that gives the names in a field these colours."""
    scale = {"domain": list(by_name), "range": list(by_name.values())}
    return {"field": field, "type": "nominal", "scale": scale, "legend": {"title": title} if legend else None}


def shapes(field: str, markers: Mapping[str, str], title: str | None = None) -> dict[str, Any]:
    """Return the channel that gives the names in a field these of Matplotlib's markers."""
    scale = {"domain": list(markers), "range": [SHAPES.get(marker, "circle") for marker in markers.values()]}
    return {"field": field, "type": "nominal", "scale": scale, "legend": {"title": title}}


def tooltip(**titles: str) -> list[dict[str, Any]]:
    """Return a tooltip with these fields of a row, texts or numbers, under these titles."""
    return [{"field": name, "title": title, "formatType": TELL} for name, title in titles.items()]


def quartiles(**titles: str) -> list[dict[str, Any]]:
    """Return a tooltip as `tooltip`, with median and quartiles of the time at its end."""
    return tooltip(**titles, median_ms="median (ms)", q1_ms="1st quartile (ms)", q3_ms="3rd quartile (ms)")


def picker(name: str, label: str, options: Sequence[str], first: str) -> dict[str, Any]:
    """Return the parameter of a list to choose from; an expression names it by `name`."""
    return {"name": name, "value": first, "bind": {"input": "select", "options": list(options), "name": f"{label} "}}


def picked(**fields: str) -> list[dict[str, str]]:
    """Return the transform that keeps the rows whose fields have the values of these parameters."""
    return [{"filter": f"datum.{field} === {parameter}"} for field, parameter in fields.items()]


def axis(field: str, title: str, log: bool = False, **more: Any) -> dict[str, Any]:
    """Return a channel of numbers with its title and unit; logarithmic ones need not show zero."""
    scale = {"type": "log", "nice": False, "padding": 14} if log else {"zero": True}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, **more}


def bars_axis(field: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the channel that puts named bars under each other, in this order, without a title."""
    return {
        "field": field,
        "type": "nominal",
        "sort": list(dict.fromkeys(names)),
        "title": None,
        "axis": {"grid": False, "ticks": False, "domain": False},
    }
