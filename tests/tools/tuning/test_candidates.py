import pytest

from pipeline.attention.triton.tiles import TileConfig
from tools.tuning.candidates import Candidate
from tools.tuning.compiled import KernelReport

GOOD = {
    "registers": 168,
    "shared_bytes": 70_000,
    "spill_instructions": 0,
    "wgmma": 16,
    "wgmma_waits": 2,
    "mma_sync": 0,
    "programs_per_sm": 3,
}


def candidate(dtype="bf16", **report):
    return Candidate(dtype, TileConfig(64, 64, 4, 2), KernelReport(**GOOD | report))


def test_what_fits_and_feeds_the_tensor_cores_is_promising():
    assert candidate().is_promising


@pytest.mark.parametrize(
    "report",
    [{"shared_bytes": 240_000}, {"spill_instructions": 100}, {"wgmma_waits": 16}, {"wgmma": 0, "mma_sync": 64}],
)
def test_what_does_not_fit_spills_waits_or_uses_the_older_instruction_is_not(report):
    assert not candidate(**report).is_promising


@pytest.mark.parametrize("report", [{"spill_instructions": 404}, {"wgmma": 0, "mma_sync": 192}])
def test_fp32_may_spill_and_use_the_older_instruction(report):
    assert candidate("fp32", **report).is_promising
    assert not candidate("bf16", **report).is_promising
