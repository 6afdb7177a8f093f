import itertools
import re
from pathlib import Path

import pytest

from pipeline.cells import fields
from pipeline.cells.config import load_plan
from pipeline.cells.planned import PlannedStage
from pipeline.registry import stages

ROOT = Path(__file__).parents[1]
LINE = re.compile(r"\| .+ \| `(results/(\w+)/.+\.csv)` \| `(.+)` \| `(\w+)` \|")
PAGE = (ROOT / "docs/seeds.md").read_text().splitlines()
LINES = [found.groups() for found in map(LINE.fullmatch, PAGE) if found]


@pytest.fixture(scope="module")
def plan():
    config = {"scale": "seeds", "measure": True, "overrides": {}}
    return load_plan(config, ROOT / "config/scales", ROOT / "workflow/schemas", stages(), has_gpu=True)


@pytest.mark.parametrize(("target", "stage", "cells", "part"), LINES)
def test_each_table_of_the_write_ups_is_a_target_with_its_cells_and_course_part(plan, target, stage, cells, part):
    planned = PlannedStage(stages()[stage], plan, Path("results"), True)
    assert target in planned.tables()
    value = Path(target).stem
    of_table = [cell for cell in planned.cells.values() if fields.text(getattr(cell, planned.split_axis)) == value]
    wanted = {axis: values.split(",") for axis, _, values in (word.partition("=") for word in cells.split())}
    found = {tuple(fields.text(getattr(cell, axis)) for axis in wanted) for cell in of_table}
    assert {*itertools.product(*wanted.values())} <= found
    assert f"[[{part}]]" in (ROOT / f"src/pipeline/stages/{stage}/course.md").read_text()


def test_every_table_line_of_the_page_is_parsed():
    assert len(LINES) == len([line for line in PAGE if "results/" in line and "|" in line]) > 40
