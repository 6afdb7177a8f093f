"""Hold what each stage contributes to the pages."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from pipeline.cells.stage import Stage
from pipeline.report.chart import Chart
from pipeline.report.section import Part, Section


@dataclass(frozen=True)
class Told:
    """What a stage tells on the pages: its section, its parts in order with the user's own, its note, its tables."""

    stage: Stage
    section: Section | None
    parts: Sequence[Part]
    note: str
    tables: Sequence[str]
    rows: pd.DataFrame = field(repr=False)


def charts(told: Told) -> list[Chart]:
    """Return all charts of a stage, each name once: of its section, of the first screen, of the course's page."""
    section = told.section
    first = section.first_screen.chart if section and section.first_screen else None
    every = [*told.parts, *([first] if first else []), *(section.for_course if section else ())]
    return list({part.name: part for part in every if isinstance(part, Chart) and not part.is_empty}.values())


def is_empty(part: Part) -> bool:
    """Tell whether a part would show nothing."""
    return part.is_empty if isinstance(part, Chart) else part.rows.empty
