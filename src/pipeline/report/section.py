"""Declare what a stage reports: an answer, tables, charts, changes to make; its words are in `report.md`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from pipeline.cells.stage import Stage
from pipeline.report import formats
from pipeline.report.chart import Chart
from pipeline.report.markup import Markdown
from pipeline.report.table import Table

Part = Table | Chart


@dataclass(frozen=True)
class Change:
    """A change to make on this machine, with its evidence: a row of the first screen.

    what: in a few words; where: what it was measured on; before, after: the values; judged: a row of `versus` with
    ratio, low, high, verdict and repeats.
    """

    what: str
    where: str
    before: str
    after: str
    judged: Mapping[str, Any]

    @classmethod
    def between(
        cls, what: str, where: str, before: pd.Series, after: pd.Series, memory: str = "peak_bytes"
    ) -> "Change":
        """Make a change from two steps; after: judged against `before`. Its repeats are the fewer of the two.

        memory: the column of their bytes, which may be missing values.
        """
        old, new = (
            formats.ms(step["median_ms"]) + (f", {formats.data_size(step[memory])}" if pd.notna(step[memory]) else "")
            for step in (before, after)
        )
        return cls(what, where, old, new, {**after, "repeats": min(before["repeats"], after["repeats"])})


@dataclass(frozen=True)
class Compared:
    """A value by which machines are compared: what was measured, its unit, its value and outcome."""

    what: str
    unit: str
    value: float
    status: str = "ok"


@dataclass(frozen=True)
class FirstScreen:
    """The first screen of the page: one line, one chart, one table of models, and these as numbers (summary.json)."""

    line: str
    chart: Chart
    models: Table
    summary: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Section:
    """A stage's section; its title is the stage's question.

    answer: one or two sentences, a template filled with values (`say`). parts: tables and charts in reading order;
    those without rows are left out. for_course: more parts, shown only on the course's page. compared: a few values by
    which machines are compared. alarms: tables that the first screen shows if they have rows. trust: a line for the
    end of the first screen.
    """

    answer: str
    parts: Sequence[Part] = ()
    changes: Sequence[Change] = ()
    first_screen: FirstScreen | None = None
    for_course: Sequence[Part] = ()
    compared: Sequence[Compared] = ()
    alarms: Sequence[Table] = ()
    trust: str = ""


@dataclass(frozen=True)
class StageReport:
    """What pages show of a stage: its section, its parts in order including the user's own, its note, its rows."""

    stage: Stage
    section: Section
    parts: Sequence[Part]
    note: Markdown
    rows: pd.DataFrame = field(repr=False)

    @property
    def all_parts(self) -> dict[str, Part]:
        """All parts that are not empty, by name: of the section, the first screen and the course's page."""
        screen = self.section.first_screen
        found = [*self.parts, *([screen.chart] if screen else []), *self.section.for_course]
        return {part.name: part for part in found if not part.is_empty}


def say(template: str, /, **values: Any) -> Markdown:
    """Fill a Markdown sentence with values, which are escaped unless they are Markdown too.

    A field may name a form of pipeline.report.formats: `{step[median_ms]:ms}`.
    """
    return Markdown(formats.Filling(Markdown.escape).vformat(template, (), values))
