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

    log: logarithmic; powers of two get a tick each. zero: a linear axis starts at zero, else near the data. most: where
    it ends, None where the data do. prefixes: its ticks are short, such as 10M.
    """

    column: str
    title: str = ""
    log: bool = False
    zero: bool = True
    most: float | None = None
    prefixes: bool = False

    def middle(self, first: float, last: float) -> float:
        """Return what lies half way between two values as the axis is drawn."""
        return math.sqrt(first * last) if self.log else (first + last) / 2


@dataclass(frozen=True)
class Limit:
    """A line across a chart at one value of its axis of numbers, such as a peak."""

    value: float
    label: str


@dataclass(frozen=True)
class Chart:
    """A chart of a section; `name` is unique in it, and its file's.

    mark: `bar`, horizontal bars, those of one `y` side by side; `stack`, horizontal bars whose parts follow each other;
    `strip`, points of one `y` on a line; `line`, points joined by `colour`; `point`, points that carry their `label`.
    title: what is seen. rows: with `status`, as a frame has it; an unstable row is drawn faint, one without a value by
    its outcome. colour: the column that gives colours, each name the same in all charts (look.py). label: the column
    written beside marks. panel: a column that splits the chart, drawn below each other and chosen from on the page.
    low, high: columns of the ends of error bars. limits: lines across, on the axis of numbers. lines: other ones behind
    points, by label, each from point to point. hover: what the page tells of a mark, by title.
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
        """Whether names stand below each other, and only the x axis has numbers."""
        return self.mark in ("bar", "stack", "strip")

    @property
    def has_value(self) -> pd.Series:
        """Which rows have a value on each axis of numbers."""
        numbers = [self.x.column] if self.is_horizontal else [self.x.column, self.y.column]
        return self.rows[numbers].notna().all(axis=1)

    @property
    def drawn(self) -> pd.DataFrame:
        """The rows that have a place: with a value, or bars without one, which tell their outcome."""
        tells_outcome = self.mark == "bar" and "status" in self.rows and ~self.rows["status"].isin(WITH_VALUES)
        return self.rows[self.has_value | tells_outcome]

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be seen."""
        return not self.has_value.any()
