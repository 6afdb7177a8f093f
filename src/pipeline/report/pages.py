"""Build all pages of a run from its records: write-up, course, HTML, summary, and the drawings that they show."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from jsonschema import validate

from pipeline.cells.disk import write_text
from pipeline.cells.record import read_record
from pipeline.cells.rows import STATUSES, columns
from pipeline.cells.stage import Stage, Stages
from pipeline.cells.tabulate import stage_rows
from pipeline.errors import UserError
from pipeline.instruments.machine.identity import SOFTWARE
from pipeline.report import course, drawing, facts, frame, users
from pipeline.report.chart import Chart
from pipeline.report.formats import count
from pipeline.report.html.page import page, row_table
from pipeline.report.markup import Markdown
from pipeline.report.page_request import PageRequest
from pipeline.report.section import Section, StageReport, say
from pipeline.report.words import Words
from pipeline.report.writeup import changes, writeup

VERSION = 3  # of the summary
SCHEMA = Path(__file__).parent / "summary.schema.json"


def write_pages(request: PageRequest, stages: Stages, folder: Path) -> None:
    """Write all pages into a folder.

    Raises UserError, one line, for an invalid record, no records at all, or a folder that cannot be written.
    """
    records = [read_record(Path(path), stages) for path in request.records]
    if not records:
        raise UserError("nothing to report: no cell has been measured")
    frames = frame.by_stage(stages, records)
    reports = [stage_report(stages[name], stages, frames) for name in frames]
    cells = facts.cells(records, stages)
    text = writeup(request, cells, reports)
    tables = {each.stage.name: _all_rows(each.stage, records) for each in reports} | {"cells": row_table(cells, {})}
    parts = {f"{each.stage.name}/{name}": part for each in reports for name, part in each.all_parts.items()}
    charts = {key: part for key, part in parts.items() if isinstance(part, Chart)}
    shown = {key: chart for key, chart in charts.items() if f"](figures/{key}.svg)" in text}
    pages = {"writeup.md": text, "course.md": course.page(reports), "report.html": page(text, shown, tables)}
    try:
        shutil.rmtree(folder / "figures", ignore_errors=True)
        (folder / "figures").mkdir(parents=True)
        for key, chart in charts.items():
            drawing.draw(chart, folder / "figures" / f"{key}.svg")
        for name, content in (pages | {"summary.json": summary(request, cells, reports)}).items():
            write_text(folder / name, content)
    except OSError as error:
        raise UserError(f"cannot write the pages into {folder}: {error}") from None


def stage_report(stage: Stage, stages: Stages, frames: Mapping[str, pd.DataFrame]) -> StageReport:
    """Return the section of a stage with its parts and note; frames: those of all stages."""
    rows = frames[stage.name]
    shown = users.without_users(rows, stage)
    other_stages = {name: users.without_users(frames[name], stages[name]) for name in stage.reads if name in frames}
    users_parts = users.parts(rows, stage)
    if frame.with_values(shown).empty:
        return StageReport(stage, Section(_no_values(rows)), users_parts, Markdown(), rows)
    section = stage.build_section(shown, other_stages)
    if frame.shares_a_cpu(rows):
        section = replace(section, changes=())  # gains of ranks that share one CPU are no basis for advice
    note = Words(str(stage.folder / "report.py")).note
    return StageReport(
        stage, section, [part for part in (*section.parts, *users_parts) if not part.is_empty], note, rows
    )


def meanings(stage: Stage) -> dict[str, str]:
    """Return what the columns of a stage's rows mean, as it declares them."""
    declared = [columns(row_type) for row_type in stage.row_types.types.values()]
    # The first row type's meaning wins.
    return {name: item.meaning for each in reversed(declared) for name, item in each.items()}


def summary(request: PageRequest, cells: pd.DataFrame, stage_reports: Sequence[StageReport]) -> str:
    """Return the first screen's values as JSON for programs.

    Raises jsonschema.ValidationError if they do not match `summary.schema.json`.
    """
    screens = [each.section.first_screen for each in stage_reports if each.section.first_screen]
    found = {
        "version": VERSION,
        "machines": sorted(cells["machine"].unique()),
        "software": {name: sorted(cells[name].astype(str).unique()) for name in SOFTWARE},
        "scale": request.scale or None,
        "commits": sorted(cells["commit"].dropna().astype(str).unique()),
        "measured": {"from": cells["started_at"].min(), "to": cells["started_at"].max()},
        "cells": {status: int((cells["status"] == status).sum()) for status in STATUSES},
        "models": [model for screen in screens for model in screen.summary],
        "changes": json.loads(changes(stage_reports).drop(columns="gain").to_json(orient="records")),
    }
    validate(found, json.loads(SCHEMA.read_text(encoding="utf-8")))
    return json.dumps(found, indent=1, allow_nan=False) + "\n"


def _no_values(rows: pd.DataFrame) -> str:
    outcomes = ", ".join(f"{count(number)} {outcome}" for outcome, number in rows["status"].value_counts().items())
    return say("No results: {outcomes}. {reason}", outcomes=outcomes, reason="".join(rows["reason"].dropna().head(1)))


def _all_rows(stage: Stage, records: frame.Records) -> Mapping:
    own_records = [record for record in records if record["stage"] == stage.name]
    return row_table(frame.readable(stage_rows(stage, own_records)), meanings(stage))
