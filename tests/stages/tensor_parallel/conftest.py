import pytest

from pipeline.stages.tensor_parallel.cell import Cell, Settings
from pipeline.stages.tensor_parallel.measure import measure

from ...records import rows_on_gloo

SMOKE = Settings(vocab_size=300, warmup_steps=1, steps=3, rounds=1, matmul_side=64, threads=1)
BLOCK = Cell(what="block", precision="fp32", size="nano", batch_size=4, context_length=16, world_size=4)


@pytest.fixture(scope="session")
def block_rows(host):
    return rows_on_gloo(host, measure, BLOCK, SMOKE)
