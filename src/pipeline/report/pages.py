"""Build all pages of a run from its records: write-up, course, HTML, summary, and the drawings that they show."""

import importlib.resources
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from pipeline.cells.disk import write_text
from pipeline.cells.record import read_record
from pipeline.cells.stage import Stage, Stages
from pipeline.errors import UserError
from pipeline.report import course, facts, frame, own, svg
from pipeline.report.asked import Asked
from pipeline.report.html.report_page import report_page
from pipeline.report.markup import unwrapped
from pipeline.report.summary import summary
from pipeline.report.told import Told, charts, is_empty
from pipeline.report.writeup import writeup

WRITEUP, COURSE, HTML, SUMMARY, FIGURES = "writeup.md", "course.md", "report.html", "summary.json", "figures"


def write_pages(asked: Asked, stages: Stages, folder: Path) -> None:
    """Write all pages into a folder.

    Raises UserError, one line, for what is no record, no records at all, and a folder that cannot be written.
    """
    records = [read_record(Path(path), stages) for path in asked.records]
    if not records:
        raise UserError("nothing to report: no cell has been measured")
    found = facts.records_by_stage(records)
    frames = {name: frame.build(stages[name], found[name]) for name in stages if name in found}
    every = [told(stages[name], stages, frames) for name in frames]
    cells = facts.cells(records, stages)
    pages = writeup(asked, cells, every, frames, stages), course.page(every)
    try:
        _draw(every, folder / FIGURES)
        write_text(folder / WRITEUP, pages[0])
        write_text(folder / COURSE, pages[1])
        write_text(folder / HTML, report_page(pages[0], every, found, cells, stages))
        write_text(folder / SUMMARY, summary(asked, cells, every))
    except OSError as error:
        raise UserError(f"cannot write the pages into {folder}: {error}") from None


def told(stage: Stage, stages: Stages, frames: Mapping[str, pd.DataFrame]) -> Told:
    """Return what a stage tells, from the frames of all stages."""
    rows = frames[stage.name]
    shown = own.without_own(rows, stage)
    beside = {name: own.without_own(frames[name], stages[name]) for name in stage.reads if name in frames}
    section = stage.report()(shown, beside) if len(frame.with_figures(shown)) else None
    parts = [*(section.parts if section else ()), *own.parts(rows, stage)]
    split = rows[stage.split_axis].drop_duplicates().astype(str)
    note = importlib.resources.files(stage.package).joinpath("report.md").read_text(encoding="utf-8")
    return Told(
        stage, section, [part for part in parts if not is_empty(part)], unwrapped(note.strip()), list(split), rows
    )


def _draw(told: Sequence[Told], folder: Path) -> None:
    """Draw all charts into an emptied folder, one below it a stage."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for each in told:
        for chart in charts(each):
            svg.draw(chart, folder / each.stage.name / f"{chart.name}.svg")
