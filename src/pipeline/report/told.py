"""What pages are made of: which records were asked for, and what each stage tells of its own."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.cells.disk import write_text
from pipeline.cells.stage import Stage
from pipeline.errors import UserError
from pipeline.report.chart import Chart
from pipeline.report.section import Part, Section


@dataclass(frozen=True)
class Asked:
    """What pages are asked to show: which records, and what is said of the run.

    scale: which cells were asked for; empty where what is there is written up. missing: cells of the scale that have no
    record: `stage` and `cell`. outdated: digests of code that has changed since it measured. config: the words after
    Snakemake's `--config` that ask for the same run.
    """

    records: Sequence[str]
    scale: str = ""
    missing: Sequence[Mapping[str, Any]] = ()
    outdated: Sequence[str] = ()
    config: Sequence[str] = ()


def write_asked(asked: Asked, path: Path) -> None:
    """Write what `read_asked` reads, unless it is there already: an unchanged file keeps its time."""
    text = json.dumps(asdict(asked), indent=1) + "\n"
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def read_asked(path: Path) -> Asked:
    """Read what pages are asked to show; raises UserError, one line, for a file that is no such thing."""
    try:
        return Asked(**json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise UserError(f"{path} does not say what pages are to show: run snakemake, which writes it") from None


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
