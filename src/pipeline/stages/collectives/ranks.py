"""Measure one rank of a cell: warm up over all sizes, check each result, time bursts, single calls and graphs."""

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
from torch import Tensor

from pipeline.errors import Skipped
from pipeline.instruments.sampling.bursts import time_burst_ms
from pipeline.instruments.sampling.cuda_graph import captured
from pipeline.instruments.sampling.step_timing import Sampling, StopRule, time_call_ms, time_phases
from pipeline.parallel import nccl
from pipeline.parallel.processes.starting import RankContext
from pipeline.stages.collectives.buffers import DTYPES, Buffers, needed_bytes
from pipeline.stages.collectives.cell import PLACEMENTS, Cell, Settings
from pipeline.stages.collectives.declared import COLLECTIVES

Row = dict[str, Any]
# Runs the collective on a source and a target and returns the tensor that holds the result.
Run = Callable[[Tensor, Tensor], Tensor]

# Up to this size a call's time is that of its launch, which a graph avoids.
GRAPH_MOST_BYTES = 1_000_000
# Share of free memory for buffers; the rest is for NCCL and for the numbers that results are checked against.
MEMORY_SHARE = 0.9


@dataclass(frozen=True)
class Operation:
    """One way to run a collective."""

    impl: str
    placement: str
    run: Run

    def key(self, **more: Any) -> Row:
        """Return the key of one of its rows."""
        return {"impl": self.impl, "placement": self.placement, **more}


@dataclass(frozen=True)
class RankReport:
    """What a rank measured.

    rows: the same on every rank except samples_ms; states, slowdowns: of the GPUs, by size in bytes, after the samples;
    no_direct_nccl: why NCCL was not called directly, if so.
    """

    rows: list[Row]
    states: dict[int, list[Row]]
    slowdowns: dict[int, list[str]]
    no_direct_nccl: str | None = None


def measure_rank(context: RankContext, cell: Cell, settings: Settings) -> RankReport:
    """Measure every size on one rank; a size that does not fit on every rank is out of memory."""
    sizes = settings.sizes_bytes(cell.backend)
    of_torch = Operation("torch", cell.placement, _by_torch(context, cell))
    [least] = Buffers(cell, context.rank, sizes[0], context.device).parts(sizes[0], 1)
    first_ms = time_call_ms(partial(of_torch.run, *least), context.device)
    rows = [
        {"timing": "set_up", "impl": "torch", "clock": "host", "samples_ms": [context.group_setup_ms]},
        {**of_torch.key(timing="first_call", clock="host", size_bytes=sizes[0]), "samples_ms": [first_ms]},
    ]
    fitting, too_large = _fitting(context, cell, sizes)
    if not fitting:
        return RankReport([*rows, *too_large], {}, {})
    buffers = Buffers(cell, context.rank, fitting[-1], context.device)
    rank = _Rank(context, settings, buffers)
    if not cell.is_called_directly:
        return rank.report(fitting, [of_torch], [*rows, *too_large])
    try:
        library = nccl.loaded_library()
    except Skipped as reason:
        return replace(rank.report(fitting, [of_torch], [*rows, *too_large]), no_direct_nccl=str(reason))
    communicator, setup_ms = _communicator(context, library)
    rows.append({"timing": "set_up", "impl": "nccl", "clock": "host", "samples_ms": [setup_ms]})
    operations = [of_torch, *_direct_operations(context, communicator, cell, fitting[-1])]
    report = rank.report(fitting, operations, [*rows, *too_large])
    communicator.close()
    return report


def _fitting(context: RankContext, cell: Cell, sizes: list[int]) -> tuple[list[int], list[Row]]:
    """Return the sizes that fit into the GPU with the least free memory, and rows of the others; on a CPU all fit."""
    if context.device.type != "cuda":
        return sizes, []
    free_bytes = -_most(-torch.cuda.mem_get_info(context.device)[0], context.device)
    fitting = [size for size in sizes if needed_bytes(cell, size) <= MEMORY_SHARE * free_bytes]
    rows = [
        {
            **key,
            "size_bytes": size,
            "status": "oom",
            "reason": f"needs {needed_bytes(cell, size) / 1e9:.1f} GB a GPU, {free_bytes / 1e9:.1f} GB are free",
        }
        for size in sizes[len(fitting) :]
        for key in cell.row_keys()
    ]
    return fitting, rows


def _by_torch(context: RankContext, cell: Cell) -> Run:
    call = COLLECTIVES[cell.collective].call

    def run(source: Tensor, target: Tensor) -> Tensor:
        call(source, target, context.rank, context.world_size)
        return target

    return run


def _communicator(context: RankContext, library: ctypes.CDLL) -> tuple[nccl.Communicator, float]:
    """Return an NCCL communicator and the milliseconds that its construction took."""
    unique_id = nccl.agree_on_id(library, context.rank, context.device)
    dist.barrier()
    started = time.perf_counter()
    communicator = nccl.Communicator(library, unique_id, context.rank, context.world_size)
    return communicator, (time.perf_counter() - started) * 1e3


def _direct_operations(
    context: RankContext, communicator: nccl.Communicator, cell: Cell, max_bytes: int
) -> list[Operation]:
    """Return NCCL's all-reduce called directly, in place and out of place."""
    whole = cell.buffer_bytes(max_bytes) // DTYPES[cell.dtype].itemsize
    results = torch.empty(whole, dtype=DTYPES[cell.dtype], device=context.device)
    stream = torch.cuda.current_stream(context.device).cuda_stream

    def run(source: Tensor, _target: Tensor, out_of_place: bool) -> Tensor:
        result = results[source.storage_offset() :][: len(source)] if out_of_place else source
        communicator.all_reduce(source, result, stream)
        return result

    return [Operation("nccl", name, partial(run, out_of_place=name == "out_of_place")) for name in PLACEMENTS]


class _Rank:
    """One rank's buffers, and how much to sample."""

    def __init__(self, context: RankContext, settings: Settings, buffers: Buffers) -> None:
        self._context, self._settings, self._buffers = context, settings, buffers

    def report(self, sizes: list[int], operations: list[Operation], rows: list[Row]) -> RankReport:
        """Warm up over all sizes, then measure one size after another; append to the given rows."""
        for size in reversed(sizes):
            for operation in operations:
                [part] = self._buffers.parts(size, 1)
                for _ in range(self._settings.warmup_calls):
                    operation.run(*part)
        report = RankReport(list(rows), {}, {})
        for size in sizes:
            size_rows, sampling = self._measure_size(operations, size)
            report.rows.extend(size_rows)
            if sampling is not None:
                report.states[size] = sampling.state_after
                report.slowdowns[size] = sampling.slowdowns()
        return report

    def _measure_size(self, operations: list[Operation], size: int) -> tuple[list[Row], Sampling | None]:
        """Check every operation, then time the correct ones; only torch's is also timed as single calls and graphs."""
        outcomes = {operation: self._complaint(operation, size) for operation in operations}
        right = [operation for operation, complaint in outcomes.items() if complaint is None]
        rows = self._burst_rows(right, size) if right else []
        rows += [
            {**operation.key(timing=timing, size_bytes=size), "status": "wrong", "reason": complaint}
            for operation, complaint in outcomes.items()
            if complaint is not None
            for timing in (("burst", "single") if operation is operations[0] else ("burst",))
        ]
        if operations[0] not in right:
            return rows, None
        sampling = self._singles(operations[0], size)
        for clock, samples_ms in sampling.timings["call"].by_clock().items():
            key = operations[0].key(timing="single", clock=clock, size_bytes=size)
            rows.append({**key, "calls": 1, "samples_ms": samples_ms})
        if self._context.device.type == "cuda" and size <= GRAPH_MOST_BYTES:
            rows.append(self._graph_row(operations[0], size))
        return rows, sampling

    def _complaint(self, operation: Operation, size: int) -> str | None:
        """Run an operation once; say how many numbers are wrong on which rank, with the same text on every rank."""
        [part] = self._buffers.parts(size, 1)
        return self._wrong_ranks(self._buffers.wrong(operation.run(*part), size))

    def _wrong_ranks(self, wrong: int) -> str | None:
        counts = torch.zeros(self._context.world_size, dtype=torch.int64, device=self._context.device)
        counts[self._context.rank] = wrong
        dist.all_reduce(counts)
        found = [f"{count} on rank {rank}" for rank, count in enumerate(counts.tolist()) if count]
        return f"wrong numbers: {', '.join(found)}" if found else None

    def _burst_rows(self, operations: list[Operation], size: int) -> list[Row]:
        """Time bursts of these operations, interleaved.

        Each call uses the next part of the buffers, as in nccl-tests: otherwise a small call would hit data that the
        previous call left in the GPU's cache, and be faster than any all-reduce after a backward pass.
        """
        settings, budget_ms = self._settings, self._settings.budget_s * 1e3
        call_ms = _most(self._burst_ms(operations[0], size, 1), self._context.device)
        calls = _between(1, budget_ms / (settings.samples * call_ms), settings.burst_calls)
        bursts = _between(settings.samples, budget_ms / (calls * call_ms), settings.max_samples)
        samples_ms: list[list[float]] = [[] for _ in operations]
        for _ in range(bursts):
            for operation, samples in zip(operations, samples_ms, strict=True):
                samples.append(self._burst_ms(operation, size, calls))
        shared = {
            "timing": "burst",
            "clock": "cuda_events" if self._context.device.type == "cuda" else "host",
            "size_bytes": size,
            "calls": calls,
            "parts": len(self._buffers.parts(size, calls + 1)),
        }
        return [
            {**operation.key(**shared), "samples_ms": samples}
            for operation, samples in zip(operations, samples_ms, strict=True)
        ]

    def _burst_ms(self, operation: Operation, size: int, calls: int) -> float:
        parts = cycle(self._buffers.parts(size, calls + 1))
        dist.barrier()
        return time_burst_ms(lambda: operation.run(*next(parts)), self._context.device, calls)

    def _singles(self, operation: Operation, size: int) -> Sampling:
        """Time calls one by one, each after a barrier and a synchronisation."""
        [part] = self._buffers.parts(size, 1)
        phases = {
            "fill": lambda: self._buffers.parts(size, 1),
            "meet": dist.barrier,
            "call": lambda: operation.run(*part),
        }
        trial = time_phases(phases, self._context.device, 0, StopRule(1, 1, 0, math.inf))
        round_ms = sum(timings.host_ms[0] for timings in trial.timings.values())
        call_ms = _most(round_ms, self._context.device)
        count = _between(self._settings.samples, self._settings.budget_s * 1e3 / call_ms, self._settings.max_samples)
        # A fixed count: with a stop rule on its own clock, one rank might stop while the others wait for it.
        return time_phases(phases, self._context.device, 0, StopRule(count, count, 0, math.inf))

    def _graph_row(self, operation: Operation, size: int) -> Row:
        """Time a CUDA graph of up to `burst_calls` calls; a sample replays it once to align the ranks, once timed."""
        key = operation.key(timing="graph", size_bytes=size)
        parts = self._buffers.parts(size, self._settings.burst_calls)
        try:
            with captured(lambda: [operation.run(*part) for part in parts], self._context.device) as graph:
                parts = self._buffers.parts(size, self._settings.burst_calls)
                wrong = sum(self._buffers.wrong(result, size) for result in graph())
                complaint = self._wrong_ranks(wrong)
                if complaint is not None:
                    return {**key, "status": "wrong", "reason": complaint}
                samples_ms = [self._replay_ms(graph, len(parts)) for _ in range(self._settings.samples)]
        except Skipped as reason:
            return {**key, "status": "skipped", "reason": str(reason)}
        return {**key, "clock": "cuda_events", "calls": len(parts), "parts": len(parts), "samples_ms": samples_ms}

    def _replay_ms(self, graph: Callable[[], object], calls: int) -> float:
        dist.barrier()
        return time_burst_ms(graph, self._context.device, 1) / calls


def _most(value: float, device: torch.device) -> float:
    """Agree on the largest of the ranks' values, so that all ranks make the same plan."""
    agreed = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(agreed, dist.ReduceOp.MAX)
    return agreed.item()


def _between(low: int, wanted: float, high: int) -> int:
    return max(low, min(int(wanted), high))
