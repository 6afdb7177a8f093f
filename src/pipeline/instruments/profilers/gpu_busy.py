"""The instrument `gpu_busy`: how long a GPU is busy during a step, and for how long only collectives run.

The profiler records GPU activity only: recording every operator on the host would slow down the launches. It stays
attached to the process and keeps slowing down launches, so profile after the timed steps, never before.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import pandas as pd
import torch
from torch.profiler import ProfilerActivity, profile

from pipeline.compat.torch_private import keep_gpu_busy, profiler_events
from pipeline.instruments.machine.power import Power
from pipeline.instruments.profilers.intervals import union_us, work_of
from pipeline.instruments.profilers.kernel_categories import category
from pipeline.instruments.sampling.step_timing import time_call_ms

# The kernel that `keep_gpu_busy` launches; it separates the steps on the GPU's timeline.
MARK = "spin_kernel"
MARK_CYCLES = 1000


@dataclass(frozen=True)
class GpuBusy:
    """A step as the GPU saw it, named like the columns of its row; medians over the profiled steps.

    gpu_busy_ms: the time in which at least one kernel or copy ran; launches: kernels, copies and fills, including those
    that a CUDA graph replays; exposed_communication_ms: the part of gpu_busy_ms in which only collectives ran;
    profiled_ms: the wall time of the step under the profiler, which shows what profiling costs.
    """

    gpu_busy_ms: float
    launches: int
    exposed_communication_ms: float
    profiled_ms: float


def step_columns(busy: GpuBusy | None, power: Power) -> dict[str, Any]:
    """Return the extra columns of a whole step's row: what the GPU did meanwhile, and the energy.

    busy: None if nothing was profiled; power: over the timed steps.
    """
    return {**(asdict(busy) if busy else {}), "energy_j": power.energy_j}


def profile_gpu_busy(step: Callable[[], object], device: torch.device, steps: int = 3) -> GpuBusy | None:
    """Profile this many steps after one that warms up the profiler; None on a CPU or if the driver reports nothing.

    Ranks that work together must all call it. Raises what `step` raises.
    """
    if device.type != "cuda":
        return None
    works, walls_ms = profile_work(step, device, steps)
    return summarise_work(works, walls_ms) if any(map(len, works)) else None


def profile_work(
    step: Callable[[], object], device: torch.device, steps: int
) -> tuple[list[pd.DataFrame], list[float]]:
    """Profile this many steps on a GPU after a warm-up step; return the work of each, as of `work_of`, and wall times.

    The work is empty if the driver reports nothing.
    """
    walls_ms = []
    # Without `acc_events`, which would turn all events into objects at the end.
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(1 + steps):
            keep_gpu_busy(MARK_CYCLES)
            walls_ms.append(time_call_ms(step, device))
    return steps_between_marks(work_of(profiler_events(profiler), on_gpu=True))[1:], walls_ms[1:]


def steps_between_marks(work: pd.DataFrame) -> list[pd.DataFrame]:
    """Split work into steps: each has what started after one mark and before the next, without the marks."""
    work = work.sort_values("start_us", kind="stable")
    is_mark = work["name"].str.contains(MARK, regex=False).astype(bool)
    number = is_mark.cumsum()
    return [work[(number == step) & ~is_mark] for step in range(1, int(is_mark.sum()) + 1)]


def summarise_work(works: list[pd.DataFrame], walls_ms: list[float]) -> GpuBusy:
    """Take medians over steps, given the work and the wall time of each."""
    busy_ms = [union_us(work) / 1e3 for work in works]
    # Other work that runs at the same time hides a collective, so only the rest is exposed.
    without_ms = [union_us(work[work["name"].map(category) != "communication"]) / 1e3 for work in works]
    return GpuBusy(
        gpu_busy_ms=median(busy_ms),
        launches=round(median(map(len, works))),
        exposed_communication_ms=median(busy - rest for busy, rest in zip(busy_ms, without_ms, strict=True)),
        profiled_ms=median(walls_ms),
    )
