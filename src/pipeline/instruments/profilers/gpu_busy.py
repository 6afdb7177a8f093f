"""The instrument `gpu_busy`: how long a GPU really works during a step, and what the rest of the wall time waits for.

The profiler listens to the GPU alone, for noting every operator on the host would slow the launches down. It stays
attached to the process afterwards and makes launches slower: profile after the timed steps, never before.
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

# The name of the kernel that `keep_gpu_busy` launches: between two of them lies a step, by the GPU's own clock.
MARK = "spin_kernel"
MARK_CYCLES = 1000


@dataclass(frozen=True)
class GpuBusy:
    """A step as the GPU saw it, by the columns of its row; medians over the profiled steps.

    gpu_busy_ms: the time in which at least one kernel or copy ran; launches: kernels, copies and fills, also those that
    a CUDA graph replays; exposed_communication_ms: the part of gpu_busy_ms in which only collectives ran; profiled_ms:
    the wall time of the step under the profiler, which shows what profiling costs.
    """

    gpu_busy_ms: float
    launches: int
    exposed_communication_ms: float
    profiled_ms: float


def step_columns(busy: GpuBusy | None, power: Power) -> dict[str, Any]:
    """Return what stands beside the wall time of a whole step: what the GPU did meanwhile, and its energy.

    busy: None where nothing was profiled; power: over the timed steps.
    """
    return {**(asdict(busy) if busy else {}), "energy_j": power.energy_j}


def profile_gpu_busy(step: Callable[[], object], device: torch.device, steps: int = 3) -> GpuBusy | None:
    """Profile so many steps, after one that warms the profiler up; None on a CPU, or where the driver tells nothing.

    Ranks that work together call it alike. Raises what `step` raises.
    """
    if device.type != "cuda":
        return None
    works, walls_ms = profile_work(step, device, steps)
    return summarise_work(works, walls_ms) if any(map(len, works)) else None


def profile_work(
    step: Callable[[], object], device: torch.device, steps: int
) -> tuple[list[pd.DataFrame], list[float]]:
    """Profile so many steps on a GPU, after one more; return the work of each as `work_of` does, and the wall times.

    Work is empty where the driver tells nothing.
    """
    walls_ms = []
    # Without `acc_events`, with which torch makes objects of all events at the end.
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(1 + steps):
            keep_gpu_busy(MARK_CYCLES)
            walls_ms.append(time_call_ms(step, device))
    return steps_between_marks(work_of(profiler_events(profiler), on_gpu=True))[1:], walls_ms[1:]


def steps_between_marks(work: pd.DataFrame) -> list[pd.DataFrame]:
    """Divide work into steps, each of what started after a mark and before the next; marks are no work."""
    work = work.sort_values("start_us", kind="stable")
    is_mark = work["name"].str.contains(MARK, regex=False).astype(bool)
    number = is_mark.cumsum()
    return [work[(number == step) & ~is_mark] for step in range(1, int(is_mark.sum()) + 1)]


def summarise_work(works: list[pd.DataFrame], walls_ms: list[float]) -> GpuBusy:
    """Take medians over steps, given the work and the wall time of each."""
    busy_ms = [union_us(work) / 1e3 for work in works]
    # What else runs beside a collective hides it, so only the rest is exposed.
    without_ms = [union_us(work[work["name"].map(category) != "communication"]) / 1e3 for work in works]
    return GpuBusy(
        gpu_busy_ms=median(busy_ms),
        launches=round(median(map(len, works))),
        exposed_communication_ms=median(busy - rest for busy, rest in zip(busy_ms, without_ms, strict=True)),
        profiled_ms=median(walls_ms),
    )
