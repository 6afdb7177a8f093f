import pytest

from pipeline.cells.sweep import expand
from pipeline.errors import UserError
from pipeline.stages.flash.cell import Cell


def test_heads_of_keys_must_have_as_many_of_queries_each():
    grids = [{"num_heads": [8, 6], "query_heads_per_kv_head": [1, 4]}]
    with pytest.raises(UserError, match=r"^num_heads must be a multiple of query_heads_per_kv_head \(4\), got 6$"):
        expand(Cell, grids, "a grid")


def test_a_cells_shape_has_its_heads_of_keys():
    cell = Cell(num_heads=32, query_heads_per_kv_head=4)
    assert (cell.shape.num_heads, cell.shape.num_kv_heads) == (32, 8)
    assert not Cell(num_heads=32).shape.has_shared_keys
