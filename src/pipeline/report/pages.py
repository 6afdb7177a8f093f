"""Build all pages of a run from its records: write-up, course, HTML, summary, and the drawings that they show."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from pipeline.cells.disk import write_text
from pipeline.cells.record import read_record
from pipeline.cells.rows import columns
from pipeline.cells.stage import Stage, Stages
from pipeline.cells.tabulate import stage_rows
from pipeline.errors import UserError
from pipeline.report import course, drawing, facts, frame, own
from pipeline.report.asked import Asked
from pipeline.report.chart import Chart
from pipeline.report.html.page import page, row_table
from pipeline.report.markup import unwrapped
from pipeline.report.section import Told
from pipeline.report.summary import summary
from pipeline.report.writeup import writeup

WRITEUP, COURSE, HTML, SUMMARY, FIGURES = "writeup.md", "course.md", "report.html", "summary.json", "figures"
CELLS = "cells"


def write_pages(asked: Asked, stages: Stages, folder: Path) -> None:
    """Write all pages into a folder.

    Raises UserError, one line, for what is no record, no records at all, and a folder that cannot be written.
    """
    records = [read_record(Path(path), stages) for path in asked.records]
    if not records:
        raise UserError("nothing to report: no cell has been measured")
    frames = frame.by_stage(stages, records)
    every = [told(stages[name], stages, frames) for name in frames]
    cells = facts.cells(records, stages)
    text = writeup(asked, cells, every)
    tables = {each.stage.name: _all_rows(each.stage, records) for each in every} | {CELLS: row_table(cells, {})}
    charts = _charts(every)
    shown = {key: chart for key, chart in charts.items() if f"](figures/{key}.svg)" in text}
    try:
        shutil.rmtree(folder / FIGURES, ignore_errors=True)
        (folder / FIGURES).mkdir(parents=True)
        for key, chart in charts.items():
            drawing.draw(chart, folder / FIGURES / f"{key}.svg")
        write_text(folder / WRITEUP, text)
        write_text(folder / COURSE, course.page(every))
        write_text(folder / HTML, page(text, shown, tables))
        write_text(folder / SUMMARY, summary(asked, cells, every))
    except OSError as error:
        raise UserError(f"cannot write the pages into {folder}: {error}") from None


def told(stage: Stage, stages: Stages, frames: Mapping[str, pd.DataFrame]) -> Told:
    """Return what a stage tells, from the frames of all stages."""
    rows = frames[stage.name]
    shown = own.without_own(rows, stage)
    beside = {name: own.without_own(frames[name], stages[name]) for name in stage.reads if name in frames}
    section = stage.report()(shown, beside) if len(frame.with_figures(shown)) else None
    if section and frame.shares_a_cpu(rows):
        section = replace(section, changes=())  # what ranks on one CPU gain is no advice
    parts = [*(section.parts if section else ()), *own.parts(rows, stage)]
    note = unwrapped((stage.folder / "report.md").read_text(encoding="utf-8").strip())
    return Told(stage, section, [part for part in parts if not part.is_empty], note, rows)


def meanings(stage: Stage) -> dict[str, str]:
    """Return what the columns of a stage's rows mean, as it declares them."""
    declared = [columns(row_type) for row_type in stage.row_types.types.values()]
    return {name: item.meaning for each in reversed(declared) for name, item in each.items()}


def _all_rows(stage: Stage, records: frame.Records) -> Mapping:
    own_records = [record for record in records if record["stage"] == stage.name]
    return row_table(frame.readable(stage_rows(stage, own_records)), meanings(stage))


def _charts(told: Sequence[Told]) -> dict[str, Chart]:
    """Return all charts by the stage and their name."""
    parts = {f"{each.stage.name}/{name}": part for each in told for name, part in each.every.items()}
    return {key: part for key, part in parts.items() if isinstance(part, Chart)}
