import pytest

from pipeline.attention.triton.tiles import TileConfig
from tools.tuning.candidates import Candidate
from tools.tuning.compiled import KernelReport

GOOD = {"registers": 168, "shared_bytes": 70_000, "spill_instructions": 0}
GOOD |= {"wgmma": 16, "wgmma_waits": 2, "mma_sync": 0, "programs_per_sm": 3, "touched_early": 0, "barriers": 3}


@pytest.mark.parametrize(
    ("report", "dtypes"),
    [
        ({}, ["bf16", "fp32"]),
        ({"shared_bytes": 240_000}, []),
        ({"wgmma_waits": 16}, []),
        ({"spill_instructions": 100}, ["fp32"]),
        ({"spill_instructions": 404}, ["fp32"]),
        ({"wgmma": 0, "mma_sync": 192}, ["fp32"]),
    ],
)
def test_promising_tiles_fit_never_wait_and_except_in_fp32_neither_spill_nor_use_mma_sync(report, dtypes):
    tiles, found = TileConfig(64, 64, 4, 2), KernelReport(**GOOD | report)
    assert [dtype for dtype in ("bf16", "fp32") if Candidate(dtype, tiles, found).is_promising] == dtypes
