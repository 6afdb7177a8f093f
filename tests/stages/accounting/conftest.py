"""The stage's tables, from its own cells at paper scale: they take no time."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pipeline.cells import config, fields
from pipeline.errors import Skipped
from pipeline.registry import stage
from pipeline.report import frame
from pipeline.stages.accounting.cell import Cell, Settings
from pipeline.stages.accounting.measure import measure

from ...records import CPU, derived

ROOT = Path(__file__).parents[3]


def record(cell, settings):
    try:
        rows = measure(cell, settings, None)
    except Skipped as skipped:
        rows = [{"status": "skipped", "reason": str(skipped)}]
    rows = derived(cell, settings, rows)
    return {"cell": asdict(cell), "settings": asdict(settings), "rows": rows, "machine": CPU}


@pytest.fixture(scope="session")
def make_rows():
    """Make the rows of cells (of the scale `paper` where none are given), as a section gets them."""

    def make(cells=None, **settings):
        scale = config.read_scale(ROOT / "config/scales/paper.yaml", ROOT / "workflow/schemas/scale.schema.yaml")
        cells = cells or fields.expand(Cell, scale["stages"]["accounting"]["grids"], "accounting")
        changed = replace(Settings(), **settings)
        return frame.build(stage("accounting"), [record(cell, changed) for cell in cells])

    return make
