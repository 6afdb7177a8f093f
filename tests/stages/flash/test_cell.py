import dataclasses

import pytest

from pipeline.cells.fields import expand
from pipeline.errors import UserError
from pipeline.stages.flash import needs
from pipeline.stages.flash.cell import SUSTAINED, Cell, Settings
from pipeline.stages.flash.needs import expected_s, needed_bytes

SETTINGS = Settings(sustained_s=2.0)
OFF = dataclasses.replace(SETTINGS, sustained_s=0.0)


def test_heads_of_keys_must_have_as_many_of_queries_each():
    grids = [{"num_heads": [8, 6], "query_heads_per_kv_head": [1, 4]}]
    with pytest.raises(UserError, match=r"^num_heads must be a multiple of query_heads_per_kv_head \(4\), got 6$"):
        expand(Cell, grids, "a grid")
    cell = Cell(num_heads=32, query_heads_per_kv_head=4)
    assert (cell.shape.num_heads, cell.shape.num_kv_heads) == (32, 8)
    assert not Cell(num_heads=32).shape.has_shared_keys


@pytest.mark.parametrize(
    ("num_heads", "on_gpu", "version", "held"),
    [
        (16, True, "4.0", len(SUSTAINED)),
        (16, True, None, len(SUSTAINED) - 2),
        *((1, True, "4.0", 0), (16, False, "4.0", 0), (1, False, None, 0)),
    ],
)
def test_only_several_heads_on_a_gpu_take_the_time_of_running_back_to_back(
    monkeypatch, num_heads, on_gpu, version, held
):
    monkeypatch.setattr(needs, "version_of", lambda _peer: version)
    cell = Cell(num_heads=num_heads)
    assert expected_s(cell, SETTINGS, on_gpu) - expected_s(cell, OFF, on_gpu) == held * 2.0


def test_fp16_needs_as_much_memory_as_bf16_and_half_of_fp32():
    fp16, bf16, fp32 = (needed_bytes(Cell(dtype=dtype), SETTINGS) for dtype in ("fp16", "bf16", "fp32"))
    assert 2 * fp16 == 2 * bf16 == fp32
