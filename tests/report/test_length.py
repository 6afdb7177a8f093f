"""How long the page is: what nobody reads to its end is no report."""

import shutil
from pathlib import Path

import pytest

from pipeline.cells.disk import write_text
from pipeline.cells.record import record_paths
from pipeline.cells.tabulate import cell_table
from pipeline.registry import stages
from pipeline.report.publish import ARCHIVE
from pipeline.report.writeup import write_section, write_writeup

PUBLISHED = Path(__file__).parents[2] / "reports/h200"
MOST_LINES = 1000


@pytest.mark.usefixtures("undrawn")
def test_the_page_of_a_whole_matrix_on_gpus_can_be_read(tmp_path):
    shutil.unpack_archive(PUBLISHED / ARCHIVE, tmp_path)
    records = {name: [*record_paths(tmp_path, name)] for name in stages()}
    sections, tables = [], []
    for name, stage in stages().items():
        read = [path for each in (name, *stage.reads) for path in records[each]]
        if not records[name]:
            continue
        sections.append(tmp_path / f"{name}.md")
        write_section(stage, stages(), read, sections[-1], tmp_path / "figures")
        tables.append(tmp_path / f"{name}.csv")
        write_text(tables[-1], cell_table(records[name], stages()))
    write_writeup(sections, tables, "paper", [], tmp_path / "writeup.md")
    assert len(sections) > 5
    assert len((tmp_path / "writeup.md").read_text().splitlines()) <= MOST_LINES
