"""One real cell, measured once."""

from functools import partial

import pytest

from pipeline.stages.sharding.cell import Cell, Settings
from pipeline.stages.sharding.measure import measure

from ...records import rows_on_gloo

TINY = Cell(size="tiny", batch_size_per_rank=1, context_length=16)
SMOKE = Settings(vocab_size=300, warmup_steps=2, steps=5, rounds=1)


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """The folder of what the real cell keeps."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="session")
def smoke_rows(kept):
    """A real cell on two processes of this machine, without its GPUs."""
    return rows_on_gloo(partial(measure, files_dir=kept), TINY, SMOKE)
