"""The instrument `rank_timing`: times a step that several ranks run together, as a whole and by phase.

Nothing synchronises between the phases: a stop would let communication that overlaps backward finish unseen. Phases are
separated by CUDA events on the current stream, on a CPU by the host clock. A step ends when the last rank is done, so
each sample is the maximum over the ranks.
"""

from typing import TypeVar

import torch
import torch.distributed as dist

from pipeline.instruments.machine import gpu_state
from pipeline.instruments.machine.power import Power, PowerWatch, power_of_ranks
from pipeline.instruments.sampling.step_timing import Phases, Sampling, Timings, time_in_a_row, warm_up

STEP = "train_step"

Key = TypeVar("Key")


def time_steps_over_ranks(phases: Phases, device: torch.device, warmup: int, steps: int) -> Sampling:
    """Repeat the phases as one step on every rank; return each step's longest times over the ranks.

    The whole step, under the name `train_step`, is timed by the host clock with a synchronize on both sides and a
    barrier before; on a GPU by CUDA events too. Every rank of the default process group must call it, and all get the
    same samples.
    """
    warm_up(phases, device, warmup)
    state_before = gpu_state.gpu_state()
    timings = {name: Timings() for name in (*phases, STEP)}
    watch = PowerWatch(device.index)
    for _ in range(steps):
        dist.barrier()
        for (name, clock), sample_ms in max_over_ranks(_time_step(phases, device), device).items():
            samples = timings[name].host_ms if clock == "host" else timings[name].cuda_events_ms
            samples.append(sample_ms)
        watch.poll()
    ranks: list[Power] = [Power()] * dist.get_world_size()
    dist.all_gather_object(ranks, watch.over(steps))
    return Sampling(timings, state_before, gpu_state.gpu_state(), power_of_ranks(ranks))


def _time_step(phases: Phases, device: torch.device) -> dict[tuple[str, str], float]:
    """Time one step on this rank; return the milliseconds by phase and clock."""
    whole_ms, phases_ms, events_ms = time_in_a_row(phases.values(), device)
    if not events_ms:
        return {(name, "host"): ms for name, ms in zip(phases, phases_ms, strict=True)} | {(STEP, "host"): whole_ms}
    times_ms = {(name, "cuda_events"): ms for name, ms in zip(phases, events_ms, strict=True)}
    return times_ms | {(STEP, "cuda_events"): sum(events_ms), (STEP, "host"): whole_ms}


def max_over_ranks(values: dict[Key, float], device: torch.device) -> dict[Key, float]:
    """Replace each value by its maximum over the ranks, which hold the same keys in the same order."""
    largest = torch.tensor(list(values.values()), dtype=torch.float64, device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return dict(zip(values, largest.tolist(), strict=True))
