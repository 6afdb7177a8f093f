import pytest

from pipeline.cells import sweep
from pipeline.errors import UserError
from pipeline.stages.timing.cell import Cell


def test_a_grid_is_the_product_of_its_axes_and_defaults():
    cells = sweep.expand(Cell, [{"size": ["small", "xl"], "precision": ["fp32", "bf16"]}], "grid")
    assert [(cell.size, cell.precision) for cell in cells] == [
        ("small", "fp32"),
        ("small", "bf16"),
        ("xl", "fp32"),
        ("xl", "bf16"),
    ]
    assert {cell.context_length for cell in cells} == {Cell().context_length}


def test_a_cell_that_two_grids_share_is_measured_once():
    grids = [{"size": ["small"]}, {"size": "small", "warmup_steps": [0, 5]}]
    assert sweep.expand(Cell, grids, "grid") == [Cell(), Cell(warmup_steps=0)]


def test_an_unknown_axis_is_named():
    with pytest.raises(UserError, match="timing grid: unknown key 'sizes'"):
        sweep.expand(Cell, [{"sizes": ["small"]}], "timing grid")
