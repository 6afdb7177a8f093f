"""The stage's tables, from its own cells at paper scale: they take no time."""

import io
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import pytest

from pipeline.cells import config, sweep
from pipeline.errors import Skipped
from pipeline.report.table_rows import read_rows
from pipeline.stages.accounting.cell import Settings
from pipeline.stages.accounting.measure import measure

ROOT = Path(__file__).parents[3]


def answered(cell, settings):
    try:
        return measure(cell, settings, None)
    except Skipped as skipped:
        return [{"status": "skipped", "reason": str(skipped)}]


@pytest.fixture(scope="session")
def make_rows():
    """Make the rows of cells (of the scale `paper` where none are given), as read back from their tables."""

    def make(cells=None, **settings):
        scale = config.read_scale(ROOT / "config/scales/paper.yaml", ROOT / "workflow/schemas/scale.schema.yaml")
        cells = cells or sweep.expand("accounting", scale["accounting"]["grids"], "accounting")
        changed = replace(Settings(), **settings)
        rows = [{**asdict(cell), **asdict(changed), **row} for cell in cells for row in answered(cell, changed)]
        text = pd.DataFrame(rows).to_csv(index=False)
        return read_rows(io.StringIO(text))

    return make
