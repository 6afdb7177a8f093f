"""Measure one rank of an allreduce cell: warm up over all sizes, check each sum, time bursts and single calls."""

import ctypes
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any

import torch
import torch.distributed as dist

from pipeline.errors import Skipped
from pipeline.instruments.sampling.bursts import time_burst_ms
from pipeline.instruments.sampling.step_timing import Sampling, StopRule, time_call_ms, time_phases
from pipeline.parallel import nccl
from pipeline.parallel.processes.starting import RankContext
from pipeline.stages.allreduce.cell import ELEMENT_BYTES, PLACEMENTS, Settings
from pipeline.stages.allreduce.payload import Payload

# Sums this rank's part with the other ranks' and returns the tensor that holds the result.
AllReduce = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Operation:
    """One way to run an all-reduce."""

    impl: str
    placement: str
    run: AllReduce

    def key(self, **more: Any) -> dict[str, Any]:
        """Return the key of one of its rows."""
        return {"impl": self.impl, "placement": self.placement, **more}


@dataclass(frozen=True)
class RankReport:
    """What a rank measured.

    rows: the same on every rank except samples_ms; states, slowdowns: of the GPUs, by size in bytes, after the samples;
    no_direct_nccl: why NCCL was not called directly, if so.
    """

    rows: list[dict[str, Any]]
    states: dict[int, list[dict[str, Any]]]
    slowdowns: dict[int, list[str]]
    no_direct_nccl: str | None = None


def measure_rank(context: RankContext, settings: Settings) -> RankReport:
    """Measure every size on one rank; raises WrongSum if a result is not exactly the sum."""
    sizes = settings.sizes_bytes()
    payload = Payload(context.rank, context.world_size, sizes[0], sizes[-1], context.device)
    torch_in_place = Operation("torch", "in_place", _torch_in_place)
    first_ms = time_call_ms(partial(_torch_in_place, payload.fill(sizes[0])), context.device)
    rows = [
        {"timing": "set_up", "impl": "torch", "clock": "host", "samples_ms": [context.group_setup_ms]},
        {**torch_in_place.key(timing="first_call", clock="host", size_bytes=sizes[0]), "samples_ms": [first_ms]},
    ]
    if context.backend != "nccl":
        return _measure_sizes(context, settings, payload, [torch_in_place], rows)
    try:
        library = nccl.loaded_library()
    except Skipped as reason:
        report = _measure_sizes(context, settings, payload, [torch_in_place], rows)
        return replace(report, no_direct_nccl=str(reason))
    communicator, setup_ms = _communicator(context, library)
    rows.append({"timing": "set_up", "impl": "nccl", "clock": "host", "samples_ms": [setup_ms]})
    operations = [torch_in_place, *_direct_operations(context, communicator, sizes[-1])]
    report = _measure_sizes(context, settings, payload, operations, rows)
    communicator.close()
    return report


def _torch_in_place(part: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(part)
    return part


def _communicator(context: RankContext, library: ctypes.CDLL) -> tuple[nccl.Communicator, float]:
    """Return an NCCL communicator and the milliseconds that its construction took."""
    unique_id = nccl.agree_on_id(library, context.rank, context.device)
    dist.barrier()
    started = time.perf_counter()
    communicator = nccl.Communicator(library, unique_id, context.rank, context.world_size)
    return communicator, (time.perf_counter() - started) * 1e3


def _direct_operations(context: RankContext, communicator: nccl.Communicator, max_bytes: int) -> list[Operation]:
    """Return NCCL's all-reduce called directly, in place and out of place."""
    target = torch.empty(max_bytes // ELEMENT_BYTES, device=context.device)
    stream = torch.cuda.current_stream(context.device).cuda_stream

    def run(part: torch.Tensor, out_of_place: bool) -> torch.Tensor:
        result = target[part.storage_offset() :][: len(part)] if out_of_place else part
        communicator.all_reduce(part, result, stream)
        return result

    return [Operation("nccl", name, partial(run, out_of_place=name == "out_of_place")) for name in PLACEMENTS]


def _measure_sizes(
    context: RankContext,
    settings: Settings,
    payload: Payload,
    operations: list[Operation],
    rows: list[dict[str, Any]],
) -> RankReport:
    """Warm up over all sizes, then measure them one after the other; append to the given rows."""
    sizes = settings.sizes_bytes()
    _warm_up(operations, payload, sizes, settings.warmup_calls)
    report = RankReport(list(rows), {}, {})
    for size in sizes:
        size_rows, sampling = _measure_size(context, settings, payload, operations, size)
        report.rows.extend(size_rows)
        report.states[size] = sampling.state_after
        report.slowdowns[size] = sampling.slowdowns()
    return report


def _warm_up(operations: list[Operation], payload: Payload, sizes: list[int], calls: int) -> None:
    for size in reversed(sizes):
        for operation in operations:
            part = payload.fill(size)
            for _ in range(calls):
                operation.run(part)


def _measure_size(
    context: RankContext, settings: Settings, payload: Payload, operations: list[Operation], size: int
) -> tuple[list[dict[str, Any]], Sampling]:
    for operation in operations:
        what = f"{operation.impl}'s all-reduce {operation.placement} of {size} bytes on {context.world_size} ranks"
        payload.check(operation.run(payload.fill(size)), what)
    burst_samples = _bursts(context, settings, payload, operations, size)
    clock = "cuda_events" if context.device.type == "cuda" else "host"
    rows = [
        {
            **operation.key(timing="burst", clock=clock, size_bytes=size),
            "calls": calls,
            "parts": parts,
            "samples_ms": samples_ms,
        }
        for operation, (calls, parts, samples_ms) in zip(operations, burst_samples, strict=True)
    ]
    sampling = _singles(context, settings, payload, operations[0], size)
    for clock, samples_ms in sampling.timings["all_reduce"].by_clock().items():
        key = operations[0].key(timing="single", clock=clock, size_bytes=size)
        rows.append({**key, "calls": 1, "samples_ms": samples_ms})
    return rows, sampling


def _bursts(
    context: RankContext, settings: Settings, payload: Payload, operations: list[Operation], size: int
) -> list[tuple[int, int, list[float]]]:
    """Time bursts of every operation in turn; return for each the calls per burst, the parts used, and the samples.

    Each call uses the next part of the buffer, as in nccl-tests: otherwise a small call would hit data that the call
    before left in the GPU's cache, and be faster than any all-reduce after a backward pass.
    """

    def burst_ms(operation: Operation, calls: int) -> float:
        parts = cycle(payload.parts(size, calls + 1))
        dist.barrier()
        return time_burst_ms(lambda: operation.run(next(parts)), context.device, calls)

    budget_ms = settings.budget_s * 1e3
    call_ms = _slowest(burst_ms(operations[0], 1), context.device)
    calls = _between(1, budget_ms / (settings.samples * call_ms), settings.burst_calls)
    bursts = _between(settings.samples, budget_ms / (calls * call_ms), settings.max_samples)
    samples_ms: list[list[float]] = [[] for _ in operations]
    for _ in range(bursts):
        for operation, samples in zip(operations, samples_ms, strict=True):
            samples.append(burst_ms(operation, calls))
    num_parts = len(payload.parts(size, calls + 1))
    return [(calls, num_parts, samples) for samples in samples_ms]


def _singles(context: RankContext, settings: Settings, payload: Payload, operation: Operation, size: int) -> Sampling:
    """Time calls one by one, each after a barrier and a synchronisation."""
    part = payload.fill(size)
    phases = {
        "fill": lambda: payload.fill(size),
        "meet": dist.barrier,
        "all_reduce": lambda: operation.run(part),
    }
    trial = time_phases(phases, context.device, 0, StopRule(1, 1, 0, math.inf))
    call_ms = _slowest(sum(timings.host_ms[0] for timings in trial.timings.values()), context.device)
    count = _between(settings.samples, settings.budget_s * 1e3 / call_ms, settings.max_samples)
    # A fixed count: with a stop rule on its own clock, one rank might stop while the others wait for it.
    return time_phases(phases, context.device, 0, StopRule(count, count, 0, math.inf))


def _slowest(value_ms: float, device: torch.device) -> float:
    """Agree on the longest of the ranks' times, so that all ranks make the same plan."""
    agreed = torch.tensor([value_ms], dtype=torch.float64, device=device)
    dist.all_reduce(agreed, dist.ReduceOp.MAX)
    return agreed.item()


def _between(low: int, wanted: float, high: int) -> int:
    return max(low, min(int(wanted), high))
