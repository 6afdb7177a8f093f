"""Check what must hold for every stage's section, on the records of published runs."""

import functools
import json

import numpy as np
import pytest

from pipeline.registry import NAMES, stages
from pipeline.report import frame
from pipeline.report.chart import Chart
from pipeline.report.course import PLACE
from pipeline.report.drawing import specification
from pipeline.report.table import Table

from .frames import GAP
from .published import SNAPSHOTS, frames

# The stages of each published run, by its tables.
MEASURED = [(name, run) for run in ("h200", "laptop") for name in NAMES if (SNAPSHOTS / run / "tables" / name).is_dir()]
ON_GPUS = [name for name, run in MEASURED if run == "h200"]
MOST_PARTS, MOST_COLUMNS = 4, 10
HOSTILE = "</td><script>alert(1)</script> | [x](http://e.com) `x` **x**"
FREE_TEXT = ("reason", "machine", "kernel", "device_name", "location")


def built(name, run, rows, beside=True):
    """Build a stage's section from rows; beside: whether it also gets the run's frames that it reads."""
    others = {other: frames(run)[other] for other in stages()[name].reads if beside and other in frames(run)}
    return stages()[name].build_section(rows, others)


@functools.cache
def whole(name, run="h200"):
    return built(name, run, frames(run)[name])


def every_part(section):
    first = section.first_screen
    return [*section.parts, *section.for_course, *([first.models, first.chart] if first else [])]


def words(section):
    """Return all the text of a section, with its charts as the page has them."""
    parts = [part for part in every_part(section) if not part.is_empty]
    drawn = [json.dumps(specification(part), allow_nan=False) for part in parts if isinstance(part, Chart)]
    changes = [str((change.what, change.where, change.before, change.after)) for change in section.changes]
    return [section.answer, *(part.markdown() for part in parts if isinstance(part, Table)), *drawn, *changes]


def of_parts(name, run):
    """Yield sections of parts of a run: one cell with no other stage's frames, then all cells but one failed."""
    rows, axes = frames(run)[name], [axis for axis in stages()[name].axes if axis != "repeat"]
    cells = [cell for _, cell in rows.groupby(axes, sort=False, dropna=False) if len(frame.with_values(cell))]
    read = [each for each in rows.select_dtypes("number") if each not in axes and "setting_" not in each]
    for cell in cells[:: max(1, len(cells) // MOST_PARTS)]:
        yield built(name, run, cell.reset_index(drop=True), beside=False)
        failed, others = rows.astype({"reason": object}), ~rows.index.isin(cell.index)
        failed.loc[others, read] = np.nan
        yield built(name, run, failed.assign(status=rows["status"].mask(others, "oom")))


@pytest.mark.parametrize(("name", "run"), MEASURED)
def test_a_section_of_some_of_the_cells_is_complete(name, run):
    for section in [whole(name, run), *of_parts(name, run)]:
        assert section.answer
        assert [text for text in words(section) if GAP.search(text)] == []


@pytest.mark.parametrize("name", ON_GPUS)
def test_text_from_records_is_escaped_in_tables(name):
    rows = frames("h200")[name]
    hostile = rows.assign(**{column: HOSTILE for column in FREE_TEXT if column in rows and rows[column].notna().any()})
    tables = [part for part in every_part(built(name, "h200", hostile)) if isinstance(part, Table)]
    assert not any("<script>" in table.markdown() for table in tables)


@pytest.mark.parametrize("name", ON_GPUS)
def test_a_section_is_short_and_its_parts_have_unique_names(name):
    tables = [part for part in whole(name).parts if isinstance(part, Table)]
    assert len(tables) <= 2
    heads = [next(line for line in part.markdown().splitlines() if line.startswith("|")) for part in tables]
    assert all(head.count("|") - 1 <= MOST_COLUMNS for head in heads)
    names = [part.name for part in (*whole(name).parts, *whole(name).for_course)]
    assert len(names) == len(set(names))
    course = stages()[name].folder / "course.md"
    assert set(PLACE.findall(course.read_text(encoding="utf-8") if course.is_file() else "")) <= set(names)
