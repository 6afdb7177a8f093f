"""Measure a ddp cell: every variant's training step on ranks of one process group, a row a variant, pass and clock."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from pipeline.cells.outcomes import together_or_apart
from pipeline.instruments.machine.identity import gpu_count
from pipeline.instruments.sampling.rank_timing import pooled, step_status
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.summary import summarise
from pipeline.instruments.sampling.weight_differences import TOLERANCE
from pipeline.parallel.processes.starting import run_ranks
from pipeline.stages.ddp.capture import PROFILER
from pipeline.stages.ddp.cell import VARIANTS, WHOLE_STEP, Cell, Settings, Variant, variant_key
from pipeline.stages.ddp.ranks import Result, measure_variants

Row = dict[str, Any]


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch) -> list[Row]:
    """Return the rows of all variants, measured in turn in the same ranks as far as all fit into memory."""
    backend = "nccl" if gpu_count() > 0 else "gloo"
    with stopwatch.measuring():
        results = together_or_apart(partial(_measure_together, cell, settings, backend), VARIANTS)
    return [row for variant, result in results.items() for row in rows_of(variant, result, cell, settings, backend)]


def _measure_together(
    cell: Cell, settings: Settings, backend: str, variants: Sequence[Variant]
) -> dict[Variant, Result]:
    results = run_ranks(
        measure_variants,
        cell.world_size,
        backend=backend,
        device_type="cuda" if backend == "nccl" else "cpu",
        timeout_s=settings.timeout_s,
        args=(cell, settings, tuple(variants)),
    )
    return results[0]


def rows_of(variant: Variant, result: Result | MemoryError, cell: Cell, settings: Settings, backend: str) -> list[Row]:
    """Make rows of what one variant's turns gave: a row a pass and clock, and one of the captured step."""
    if isinstance(result, MemoryError):
        return [variant_key(variant) | WHOLE_STEP | {"status": "oom", "reason": str(result)}]
    sampling = pooled(result.samplings)
    shared = {
        "backend": backend,
        **step_status(sampling, settings.unstable_rel_error),
        "tokens": cell.world_size * settings.batch_size_per_rank * settings.context_length,
        "peak_bytes": result.peak_bytes,
        "gradient_bytes": result.gradient_bytes,
        "all_reduces": result.all_reduces,
        "all_reduce_bytes": result.all_reduce_bytes,
        "rank_difference": result.rank_difference,
        "variant_difference": result.variant_difference,
        "weight_tolerance": TOLERANCE[cell.precision],
    }
    timed = [
        variant_key(variant)
        | {"pass": name, "clock": clock, **shared, **summarise(samples_ms), "samples_ms": samples_ms}
        for name, timings in sampling.timings.items()
        for clock, samples_ms in timings.by_clock().items()
    ]
    if result.lanes is None:
        return timed
    captured = {"pass": "captured_step", "clock": PROFILER, "status": "ok", **result.lanes.columns()}
    return [*timed, variant_key(variant) | captured]
