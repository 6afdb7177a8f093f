"""Measure a sharding cell: memory by kind, bytes sent and the step's time with each optimizer, in the same ranks."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from pipeline.cells.outcomes import together_or_apart
from pipeline.formulas.collectives import all_gather_bus_factor, all_reduce_bus_factor
from pipeline.instruments.machine.identity import gpu_count
from pipeline.instruments.sampling.rank_timing import pooled, step_status
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.summary import summarise
from pipeline.instruments.sampling.weight_differences import TOLERANCE
from pipeline.parallel.processes.starting import run_ranks
from pipeline.stages.sharding import prediction
from pipeline.stages.sharding.cell import IMPLS, KINDS, PEAKS, WHOLE_STEP, Cell, Settings
from pipeline.stages.sharding.prediction import Share
from pipeline.stages.sharding.ranks import Result, measure_optimizers

Row = dict[str, Any]


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch) -> list[Row]:
    """Return, for each optimizer, rows of times, of memory by moment and kind, and of bytes by collective."""
    backend = "nccl" if gpu_count() > 0 else "gloo"
    with stopwatch.measuring():
        results = together_or_apart(partial(_measure_together, cell, settings, backend), IMPLS)
    return [row for impl, result in results.items() for row in rows_of(impl, result, cell, settings, backend)]


def _measure_together(cell: Cell, settings: Settings, backend: str, impls: Sequence[str]) -> dict[str, Result]:
    results = run_ranks(
        measure_optimizers,
        cell.world_size,
        backend=backend,
        device_type="cuda" if backend == "nccl" else "cpu",
        timeout_s=settings.timeout_s,
        args=(cell, settings, tuple(impls)),
    )
    return results[0]


def rows_of(impl: str, result: Result | MemoryError, cell: Cell, settings: Settings, backend: str) -> list[Row]:
    """Make rows of what the turns with one optimizer gave."""
    if isinstance(result, MemoryError):
        return [{"impl": impl, **WHOLE_STEP, "status": "oom", "reason": str(result)}]
    found = [
        *_time_rows(result, cell.precision, settings),
        *_memory_rows(impl, result, cell.world_size),
        *_traffic_rows(impl, result, cell.world_size),
    ]
    return [{"impl": impl, "backend": backend, **row} for row in found]


def _time_rows(result: Result, precision: str, settings: Settings) -> list[Row]:
    sampling = pooled(result.samplings)
    status = step_status(sampling, settings.unstable_rel_error)
    shared = {
        "weight_difference": result.weight_difference,
        "weight_tolerance": TOLERANCE[precision],
        **status,
    }
    return [
        {"measures": "time", "pass": name, "clock": clock, **shared, **summarise(samples), "samples_ms": samples}
        for name, timings in sampling.timings.items()
        for clock, samples in timings.by_clock().items()
    ]


def _memory_rows(impl: str, result: Result, world_size: int) -> list[Row]:
    """Pair what was counted with what was predicted."""
    predicted = _predicted(result, _share(impl, result.parameter_bytes, world_size))
    return [
        {
            "measures": "memory",
            "moment": moment,
            "kind": kind,
            "status": "ok",
            "measured_bytes": int(size),
            "predicted_bytes": predicted.get((moment, kind)),
        }
        for (moment, kind), size in result.memory.items()
    ]


def _share(impl: str, parameter_bytes: list[int], world_size: int) -> Share:
    if impl == "adamw":
        return prediction.whole(parameter_bytes)
    return prediction.fullest_share(parameter_bytes, world_size)


def _predicted(result: Result, share: Share) -> dict[tuple[str, str], int]:
    """Predict bytes by moment and kind, but for the first peak of forward and backward, the basis of the later one.

    What the allocator gives out is what was asked for, rounded up: one prediction stands for both.
    """
    sizes = result.parameter_bytes
    on_gpu = ("initialised", "peak") in result.memory
    found: dict[tuple[str, str], int] = {}
    for moment in dict.fromkeys(moment for moment, _ in result.memory):
        kinds = prediction.kinds_bytes(sizes, share, moment, counters_on_device=not on_gpu)
        found |= {(moment, kind): kinds[kind] for kind in KINDS}
        found |= {(moment, total): sum(kinds.values()) for total in ("allocated", "requested")}
    if on_gpu:
        found |= {("initialised", peak): sum(sizes) for peak in PEAKS}
        found |= {("first_after_step", peak): prediction.step_peak_bytes(sizes, share) for peak in PEAKS}
        found |= {("after_step", peak): prediction.step_peak_bytes(sizes, share) for peak in PEAKS}
        first = {peak: int(result.memory["first_before_step", peak]) for peak in PEAKS}
        found |= {("before_step", peak): prediction.backward_peak_bytes(first[peak], share) for peak in PEAKS}
    return found


def _traffic_rows(impl: str, result: Result, world_size: int) -> list[Row]:
    """Pair the payloads of a step's collectives with the prediction, and say what each rank must send for them."""
    parameter_bytes = sum(result.parameter_bytes)
    sent_per_byte = {"allreduce": all_reduce_bus_factor(world_size), "broadcast": all_gather_bus_factor(world_size)}
    calls = Counter(call.name for call in result.collectives)
    payloads: Counter[str] = Counter()
    for call in result.collectives:
        payloads[call.name] += call.payload_bytes
    return [
        {
            "measures": "traffic",
            "collective": name,
            "status": "ok",
            "calls": calls[name],
            "measured_bytes": payloads[name],
            "predicted_bytes": parameter_bytes if name == "allreduce" or impl != "adamw" else 0,
            "sent_bytes": sent_per_byte[name] * payloads[name],
        }
        for name in ("allreduce", "broadcast")
    ]
