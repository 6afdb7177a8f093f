"""Declare charts once; drawing.py draws them for the page and as SVG files."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

from pipeline.cells.rows import WITH_VALUES


@dataclass(frozen=True)
class Axis:
    """One axis: the column that it shows, and its title with the unit.

    log: logarithmic; on an x axis with few values, each gets a tick. zero: a linear axis starts at 0, not near the
    data. most: where the axis ends; None: where the data end. prefixes: use short ticks, such as 10M.
    """

    column: str
    title: str = ""
    log: bool = False
    zero: bool = True
    most: float | None = None
    prefixes: bool = False

    def middle(self, first: float, last: float) -> float:
        """Return the midpoint of two values, as drawn on this axis."""
        return math.sqrt(first * last) if self.log else (first + last) / 2


@dataclass(frozen=True)
class Limit:
    """A line across a chart at one value of its numeric axis, such as a peak."""

    value: float
    label: str


@dataclass(frozen=True)
class Chart:
    """A chart of a section; `name` is unique in the section and names the chart's file.

    mark: `bar`, horizontal bars, grouped by `y`; `stack`, horizontal stacked bars; `strip`, the points of each `y` on
    one line; `line`, points joined by `colour`; `point`, points with their `label`. title: what the chart shows. rows:
    with `status`, as in a frame; an unstable row is drawn faint, and a bar without a value shows its outcome. colour:
    the column that sets colours; a name has the same colour in all charts (look.py). label: the column written beside
    marks. panel: a column that splits the chart into panels, one below the other in a file, one at a time on the page.
    low, high: columns with the ends of error bars. limits: lines across the chart, at values of the numeric axis.
    lines: lines behind the points, by label, each given as points. hover: columns shown on hover, by title.
    """

    name: str
    title: str
    rows: pd.DataFrame
    mark: Literal["bar", "stack", "strip", "line", "point"]
    x: Axis
    y: Axis
    colour: str = ""
    label: str = ""
    panel: str = ""
    low: str = ""
    high: str = ""
    limits: Sequence[Limit] = ()
    lines: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    hover: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_horizontal(self) -> bool:
        """Whether the y axis has names, and only the x axis has numbers."""
        return self.mark in ("bar", "stack", "strip")

    @property
    def has_value(self) -> pd.Series:
        """Which rows have a value on each numeric axis."""
        numbers = [self.x.column] if self.is_horizontal else [self.x.column, self.y.column]
        return self.rows[numbers].notna().all(axis=1)

    @property
    def drawn(self) -> pd.DataFrame:
        """The rows to draw: those with a value, and bars without one, which show their outcome."""
        shows_outcome = self.mark == "bar" and "status" in self.rows and ~self.rows["status"].isin(WITH_VALUES)
        return self.rows[self.has_value | shows_outcome]

    @property
    def is_empty(self) -> bool:
        """Whether no row has a value."""
        return not self.has_value.any()
