import pytest

from pipeline.cells.fields import expand
from pipeline.errors import UserError
from pipeline.stages.flash import needs
from pipeline.stages.flash.cell import SUSTAINED, Cell, Settings
from pipeline.stages.flash.needs import expected_s, needed_bytes


def test_query_heads_must_divide_evenly_and_fp16_needs_as_much_memory_as_bf16():
    grids = [{"num_heads": [8, 6], "query_heads_per_kv_head": [1, 4]}]
    with pytest.raises(UserError, match=r"^num_heads must be a multiple of query_heads_per_kv_head \(4\), got 6$"):
        expand(Cell, grids, "a grid")
    cell = Cell(num_heads=32, query_heads_per_kv_head=4)
    assert (cell.shape.num_heads, cell.shape.num_kv_heads) == (32, 8)
    assert not Cell(num_heads=32).shape.has_shared_keys
    fp16, bf16, fp32 = (needed_bytes(Cell(dtype=dtype), Settings()) for dtype in ("fp16", "bf16", "fp32"))
    assert 2 * fp16 == 2 * bf16 == fp32


@pytest.mark.parametrize(
    ("num_heads", "on_gpu", "version", "held"),
    [(16, True, "4.0", SUSTAINED), (16, True, None, SUSTAINED[2:]), (1, True, "4.0", ()), (16, False, "4.0", ())],
)
def test_only_several_heads_on_a_gpu_take_time_for_sustained_runs(monkeypatch, num_heads, on_gpu, version, held):
    monkeypatch.setattr(needs, "version_of", lambda _peer: version)
    on, off = (expected_s(Cell(num_heads=num_heads), Settings(sustained_s=each), on_gpu) for each in (2.0, 0.0))
    assert on - off == len(held) * 2.0
