import pytest

import pipeline.stages
from pipeline.cells import sweep
from pipeline.errors import UserError
from pipeline.stages.allreduce import cell as allreduce
from pipeline.stages.timing.cell import Cell


def test_a_grid_is_the_product_of_its_axes_and_defaults():
    cells = sweep.expand("timing", [{"size": ["small", "xl"], "precision": ["fp32", "bf16"]}], "grid")
    assert [(cell.size, cell.precision) for cell in cells] == [
        ("small", "fp32"),
        ("small", "bf16"),
        ("xl", "fp32"),
        ("xl", "bf16"),
    ]
    assert {cell.context_length for cell in cells} == {Cell().context_length}


def test_a_cell_that_two_grids_share_is_measured_once():
    grids = [{"size": ["small"]}, {"size": "small", "warmup_steps": [0, 5]}]
    assert sweep.expand("timing", grids, "grid") == [Cell(), Cell(warmup_steps=0)]


def test_an_unknown_axis_is_named():
    with pytest.raises(UserError, match="timing grid: unknown key 'sizes'"):
        sweep.expand("timing", [{"sizes": ["small"]}], "timing grid")


def test_every_stage_has_its_place_in_the_reading_order():
    names = sweep.stage_names()
    assert "timing" in names
    assert names == [name for name in pipeline.stages.READING_ORDER if name in names]


def test_rows_are_told_apart_by_the_declared_columns_or_by_those_of_the_default_cells_keys():
    assert sweep.row_columns("allreduce") == allreduce.ROW_COLUMNS
    assert sweep.row_columns("timing") == ("pass", "clock")


@pytest.mark.parametrize("stage", sweep.stage_names())
def test_the_columns_of_rows_hold_those_of_a_row_that_could_not_be_measured(stage):
    keys = sweep.declaration(stage).Cell().row_keys()
    assert {name for key in keys for name in key} <= set(sweep.row_columns(stage))


def test_an_unknown_stage_is_named_with_the_known_ones():
    with pytest.raises(UserError, match=r"unknown stage 'timings'; known are .*timing"):
        sweep.declaration("timings")
