"""Measure a ceilings cell: one ceiling after another, each until its own stop rule ends it."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import torch

from pipeline.errors import Skipped
from pipeline.instruments.machine.ceilings import Ceiling, measure_ceiling
from pipeline.instruments.machine.pinning import pinned
from pipeline.instruments.sampling.gpu_readings import gpu_columns
from pipeline.instruments.sampling.interleaving import Interleaving
from pipeline.instruments.sampling.step_timing import StopRule
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.summary import quartiles
from pipeline.stages.ceilings.cell import DTYPES, KINDS, Cell, Settings

Row = dict[str, Any]

# Products expected to take longer are skipped: a CPU without bf16 units takes 100 times its fp32 time.
LONGEST_CALL_MS = 1000.0
# Both tensors of a copy then fill half of the L2 cache.
L2_SHARE = 4
ELEMENT_BYTES = 4


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch) -> list[Row]:
    """Return a row for each ceiling; those that this machine lacks are skipped."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with stopwatch.measuring(), pinned(device):
        if cell.what == "matmul":
            # Ordered by side: right after a large product of another type, a small one would run at a lowered clock.
            by_side = zip_longest(*(_products(dtype, settings, device) for dtype in DTYPES))
            return [row for rows in by_side for row in rows if row is not None]
        return [_call(kind, settings, device) for kind in KINDS[cell.what]]


def _products(dtype: str, settings: Settings, device: torch.device) -> Iterator[Row]:
    """Yield one row per side, smallest first; if the data type cannot be measured, one row that says why."""
    longest_ms = 0.0
    for side in settings.sides():
        key = {"dtype": dtype, "side": side}
        if longest_ms > LONGEST_CALL_MS:
            yield {**key, "status": "skipped", "reason": f"would take about {longest_ms / 1e3:.0f} s a product"}
            return
        try:
            row = _row(Ceiling("matmul", side, dtype), settings, device)
        except Skipped as skipped:
            yield {"dtype": dtype, "status": "skipped", "reason": str(skipped)}
            return
        yield {**key, **row}
        # An estimate for the next product, whose sides are twice as long.
        longest_ms = 8 * quartiles(row["samples_ms"])[1] if "samples_ms" in row else 0.0


def _call(kind: str, settings: Settings, device: torch.device) -> Row:
    try:
        return {"kind": kind, **_row(Ceiling(kind, _tensor_bytes(kind, settings, device)), settings, device)}
    except Skipped as skipped:
        return {"kind": kind, "status": "skipped", "reason": str(skipped)}


def _tensor_bytes(kind: str, settings: Settings, device: torch.device) -> int:
    if kind in KINDS["launches"]:
        return ELEMENT_BYTES
    if kind == "l2_copy" and device.type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size // L2_SHARE
    return settings.memory_bytes if kind in KINDS["memory"] else settings.link_bytes


def _row(ceiling: Ceiling, settings: Settings, device: torch.device) -> Row:
    rule = StopRule(settings.samples, settings.max_samples, settings.rel_error, settings.budget_s)
    seen: Interleaving[str] = measure_ceiling(ceiling, device, rule)
    taken = seen.taken[ceiling.kind]
    if taken.out_of_memory:
        return {"status": "oom", "reason": taken.out_of_memory}
    return {
        "status": "ok",
        **({} if ceiling.kind in KINDS["launches"] or ceiling.dtype else {"tensor_bytes": ceiling.size}),
        **gpu_columns(seen.state_before, seen.state_after, seen.power, seen.slowdowns()),
        "samples_ms": next(iter(taken.times_ms.values())),
    }
