"""What holds for the section of every stage, on the records of published runs."""

import functools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from pipeline.compare.runs import archived_records
from pipeline.registry import NAMES, stages
from pipeline.report import frame
from pipeline.report.chart import Chart
from pipeline.report.course import PLACE
from pipeline.report.drawing import specification
from pipeline.report.own import without_own
from pipeline.report.table import MOST_COLUMNS, Table

SNAPSHOTS = Path(__file__).parents[2] / "reports"
# The stages of each published run, by its tables.
MEASURED = [(name, run) for run in ("h200", "laptop") for name in NAMES if (SNAPSHOTS / run / "tables" / name).is_dir()]
ON_GPUS = [name for name, run in MEASURED if run == "h200"]
ANSWERING = [name for name in ON_GPUS if (stages()[name].folder / "course.md").is_file()]
# Of a value that is not there, written all the same.
GAP = re.compile(r"\bnan\b|\bNone\b|\binf\b|\bNaT\b|<NA>")
MOST_PARTS = 8
HOSTILE = "</td><script>alert(1)</script> | [x](http://e.com) `x` **x**"
FREE_TEXT = ("reason", "machine", "kernel", "device_name", "location")


@functools.cache
def frames(run):
    found = frame.by_stage(stages(), archived_records_of(run))
    return {name: without_own(rows, stages()[name]) for name, rows in found.items()}


def archived_records_of(run):
    return [record for _, record in archived_records(SNAPSHOTS / run / "records.tar.xz", stages())]


def section(name, run, rows=None, beside=True):
    """Build a stage's section of a run's rows, or of others in their place."""
    every = frames(run)
    others = {other: every[other] for other in stages()[name].reads if other in every} if beside else {}
    return stages()[name].report()(every[name] if rows is None else rows, others)


def every_part(section):
    first = section.first_screen
    return [*section.parts, *section.for_course, *([first.models, first.chart] if first else [])]


def words(section):
    """Return all that a section says, its charts as the page has them."""
    parts = [part for part in every_part(section) if part is not None]
    tables = [str(part.markdown()) for part in parts if isinstance(part, Table) and len(part.rows)]
    charts = [
        json.dumps(specification(part), allow_nan=False)
        for part in parts
        if isinstance(part, Chart) and not part.is_empty
    ]
    changes = [str((change.what, change.where, change.before, change.after)) for change in section.changes]
    return [section.answer, *tables, *charts, *changes]


def parts_of(name, run):
    """Return parts of the rows of a run: of one cell, and where all cells but one failed."""
    rows, axes = frames(run)[name], [axis for axis in stages()[name].axes if axis != "repeat"]
    cells = [cell for _, cell in rows.groupby(axes, sort=False, dropna=False) if len(frame.with_figures(cell))]
    for cell in cells[:: max(1, len(cells) // MOST_PARTS)]:
        yield cell.reset_index(drop=True)
        others = rows[~rows.index.isin(cell.index)].assign(status="oom", reason="CUDA out of memory")
        numbers = [
            column for column in others.select_dtypes("number") if column not in axes and "setting_" not in column
        ]
        yield (
            rows.assign(**{column: rows[column].astype(object) for column in ("reason",)})
            .where(rows.index.isin(cell.index)[:, None] | ~rows.columns.isin(numbers), np.nan)
            .assign(status=rows["status"].where(rows.index.isin(cell.index), "oom"))
        )


@pytest.mark.parametrize(("name", "run"), MEASURED)
def test_the_section_of_a_part_of_the_cells_is_whole(name, run):
    for rows in [frames(run)[name], *parts_of(name, run)]:
        for beside in (True, False):
            found = words(section(name, run, rows, beside))
            assert found[0]
            assert [text for text in found if GAP.search(text)] == []


@pytest.mark.parametrize("name", ON_GPUS)
def test_text_that_a_record_holds_is_text_in_its_tables(name):
    rows = frames("h200")[name]
    hostile = rows.assign(**{column: HOSTILE for column in FREE_TEXT if column in rows and rows[column].notna().any()})
    for part in every_part(section(name, "h200", hostile)):
        if isinstance(part, Table):
            assert "<script>" not in part.markdown()


@pytest.mark.parametrize("name", ON_GPUS)
def test_its_page_is_short_and_its_parts_have_names_of_their_own(name):
    found = section(name, "h200")
    tables = [part for part in found.parts if isinstance(part, Table)]
    assert len(tables) <= 2
    heads = [next(line for line in part.markdown().splitlines() if line.startswith("|")) for part in tables]
    assert all(head.count("|") - 1 <= MOST_COLUMNS for head in heads)
    names = [part.name for part in (*found.parts, *found.for_course)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ANSWERING)
def test_every_place_of_its_course_page_is_a_part_of_its_section(name):
    found, file = section(name, "h200"), stages()[name].folder / "course.md"
    assert set(PLACE.findall(file.read_text(encoding="utf-8"))) <= {
        part.name for part in (*found.parts, *found.for_course)
    }


@pytest.mark.parametrize(("name", "run"), MEASURED)
def test_the_columns_of_rows_tell_the_rows_of_a_cell_apart(name, run):
    keys = stages()[name].row_types.key_columns()
    for record in archived_records_of_stage(name, run):
        told = [tuple(row.get(key) for key in keys) for row in record["rows"]]
        assert len(told) == len(set(told))


@functools.cache
def archived_records_of_stage(name, run):
    return [record for record in archived_records_of(run) if record["stage"] == name]
