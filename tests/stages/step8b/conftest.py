"""A synthetic turn of an 8B model on GPUs, and a real cell of two processes, measured once."""

import numpy as np
import pytest

from pipeline.instruments.profilers.gpu_busy import GpuBusy
from pipeline.instruments.sampling.step_timing import Sampling, Timings
from pipeline.stages.step8b.cell import FUSIONS, Cell, Settings
from pipeline.stages.step8b.correctness import Errors
from pipeline.stages.step8b.fusions import Measured
from pipeline.stages.step8b.keeping import Keeping
from pipeline.stages.step8b.measure import measure
from pipeline.stages.step8b.ranks import Timed, Turn
from pipeline.ways.cell import PHASES

from ...records import rows_on_gloo

STEP_MS = {"torch_compiled": 6000.0, "ours": 4700.0, "ours_fully_shard": 4750.0, "torch_eager": 6200.0}
KINDS = {"matmul": 0.49, "attention": 0.44, "elementwise": 0.04, "communication": 0.02, "idle": 0.01}
SMALL = Cell(size="tiny", context_length=64, impls="torch_eager+ours+torch_eager+ours_fully_shard+torch_selective")
SMALL_SETTINGS = Settings(
    vocab_size=500, loss_chunk=24, checked_context=32, descent_context=32, descent_steps=8, steps=2
)


def timed(rng, impl):
    total = STEP_MS[impl] * (1 + 0.001 * rng.standard_normal(3))
    timings = {name: Timings(list(total / len(PHASES)), list(total / len(PHASES))) for name in PHASES}
    timings["train_step"] = Timings(list(total), list(total))
    levels = ["qkv"] * 13 + ["gate_up"] * 21 if impl.startswith("ours") else []
    peak_bytes = int(2e7 * STEP_MS[impl])
    keeping = Keeping(levels, None, needs_bytes=peak_bytes, has_bytes=146_000_000_000)
    return Timed(Sampling(timings, [], []), 2 * STEP_MS[impl], peak_bytes, keeping, None)


def turn(rng, impl, worst=0.01):
    step_ms = STEP_MS[impl]
    errors = {"ours": Errors(11.95, 1e-6, 0.0048, worst), "bf16_eager": Errors(11.95, 2e-6, 0.0049, 0.011)}
    fusions = [Measured(name, step_ms + 100.0 * (len(FUSIONS) - n), int(1e11)) for n, name in enumerate(FUSIONS[:-1])]
    return Turn(
        timed=timed(rng, impl),
        errors=errors if impl == "ours" else {},
        losses=[12.0, 9.0, 7.5] if impl != "torch_compiled" else [],
        fusions=fusions if impl == "ours" else [],
        busy=GpuBusy(step_ms, 3000, 6.0, step_ms),
        budget=[{"category": name, "work_ms": share * step_ms, "launches": 100} for name, share in KINDS.items()],
    )


@pytest.fixture(scope="session")
def synthetic_turn():
    """Make a turn of an implementation as the GPUs would give it."""
    return lambda impl, **options: turn(np.random.default_rng(0), impl, **options)


@pytest.fixture(scope="session")
def small_rows():
    """A real cell on two processes of this machine, without its GPUs."""
    return rows_on_gloo(measure, SMALL, SMALL_SETTINGS)
