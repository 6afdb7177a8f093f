"""Two real cells on processes of this machine, measured once."""

import pytest

from pipeline.stages.tensor_parallel.cell import Cell, Settings
from pipeline.stages.tensor_parallel.measure import measure

from ...ranks import context, host, pytest_collection_finish, pytest_pyfunc_call, pytest_unconfigure  # noqa: F401
from ...records import rows_on_gloo

SMOKE = Settings(vocab_size=300, warmup_steps=1, steps=3, rounds=1, matmul_side=64, threads=1)
BLOCK = Cell(what="block", precision="fp32", size="nano", batch_size=4, context_length=16, world_size=4)
STEP = Cell(what="step", precision="fp32", size="tiny", batch_size=4, context_length=16, world_size=2)


@pytest.fixture(scope="session")
def block_rows():
    """A block over four processes."""
    return rows_on_gloo(measure, BLOCK, SMOKE)


@pytest.fixture(scope="session")
def step_rows():
    """A training step over two processes."""
    return rows_on_gloo(measure, STEP, SMOKE)
