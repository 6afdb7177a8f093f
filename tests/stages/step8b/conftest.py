"""A synthetic turn of an 8B model on GPUs, and a real cell of two processes, measured once."""

import numpy as np
import pytest

from pipeline.instruments.profilers.gpu_busy import GpuBusy
from pipeline.instruments.sampling.step_timing import Sampling, Timings
from pipeline.stages.step8b.cell import FUSIONS, Cell, Settings
from pipeline.stages.step8b.correctness import check_rows
from pipeline.stages.step8b.keeping import Keeping
from pipeline.stages.step8b.measure import measure
from pipeline.stages.step8b.turn import Turn, descent_row
from pipeline.ways.cell import PHASES

from ...records import rows_on_gloo

STEP_MS = {"torch_compiled": 6000.0, "ours": 4700.0, "ours_fully_shard": 4750.0, "torch_eager": 6200.0}
KINDS = {"matmul": 0.49, "attention": 0.44, "elementwise": 0.04, "communication": 0.02, "idle": 0.01}
SMALL = Cell(size="tiny", context_length=64, impls="torch_eager+ours+torch_eager+ours_fully_shard+torch_selective")
SMALL_SETTINGS = Settings(
    vocab_size=500, loss_chunk=24, checked_context=32, descent_context=32, descent_steps=8, steps=2
)


def sampled(rng, impl):
    total = STEP_MS[impl] * (1 + 0.001 * rng.standard_normal(3))
    timings = {name: Timings(list(total / len(PHASES)), list(total / len(PHASES))) for name in PHASES}
    timings["train_step"] = Timings(list(total), list(total))
    return Sampling(timings, [], [])


def turn(rng, impl, worst=0.01):
    step_ms, sampling = STEP_MS[impl], sampled(rng, impl)
    names = ("loss", "loss_error", "gradient_error", "worst_gradient_error")
    errors = {"ours": (11.95, 1e-6, 0.0048, worst), "bf16_eager": (11.95, 2e-6, 0.0049, 0.011)}
    once = []
    if impl == "ours":
        found = {model: dict(zip(names, each, strict=True)) for model, each in errors.items()}
        once = check_rows(found, Settings())
        if once[0]["status"] == "wrong":
            return Turn(once)
        steps_ms = [step_ms + 100.0 * (len(FUSIONS) - n) for n in range(len(FUSIONS) - 1)] + [step_ms]
        fusions = [{"fusion": name, "step_ms": ms} for name, ms in zip(FUSIONS, steps_ms, strict=True)]
        once += [{"measures": "fusion", "status": "ok", "peak_bytes": int(1e11), **fusion} for fusion in fusions]
    if impl != "torch_compiled":
        once.append(descent_row([12.0, 9.0, 7.5]))
    budget = [{"category": name, "work_ms": share * step_ms, "launches": 100} for name, share in KINDS.items()]
    once += [{"measures": "budget", "status": "ok", **item} for item in budget]
    levels, peak_bytes = ["qkv"] * 13 + ["gate_up"] * 21 if impl.startswith("ours") else [], int(2e7 * step_ms)
    keeping = Keeping(levels, None, needs_bytes=peak_bytes, has_bytes=146_000_000_000)
    step = {"first_step_ms": 2 * step_ms, "peak_bytes": peak_bytes, **keeping.columns}
    return Turn(once, sampling, step, GpuBusy(step_ms, 3000, 6.0, step_ms))


@pytest.fixture(scope="session")
def synthetic_turn():
    """Make a turn of an implementation as the GPUs would give it."""
    return lambda impl, **options: turn(np.random.default_rng(0), impl, **options)


@pytest.fixture(scope="session")
def small_rows():
    """A real cell on two processes of this machine, without its GPUs."""
    return rows_on_gloo(measure, SMALL, SMALL_SETTINGS)
