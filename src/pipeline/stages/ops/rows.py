"""Rows of the ops stage: time, rate, memory and errors by implementation and phase."""

from dataclasses import dataclass
from typing import Any

from pipeline.cells.rated_rows import PEAK_SOURCES, TriedRow, gpu_name, peak_columns
from pipeline.cells.rows import Reading, RowTypes, column, derived
from pipeline.formulas.operations import moved_bytes, product_flops
from pipeline.instruments.machine.peaks import datasheet_gb_per_s
from pipeline.stages.ops.cell import ELEMENT_BYTES, IMPLS, PHASES


@dataclass(frozen=True, kw_only=True)
class OperationTime(TriedRow):
    """One phase of one implementation. Columns of the trial calls are filled even if the phase could not be timed."""

    impl: str = column(
        "implementation: ours; torch's own operations, eager, compiled or, for AdamW, fused; Liger's",
        allowed=IMPLS,
        or_subject=True,
    )
    phase: str = column(
        "forward: the outputs; backward: the gradients; whole: one after the other; for AdamW, a step", allowed=PHASES
    )
    output_rel_error: float | None = column(
        "relative L2 error against fp64, the largest over the outputs; for AdamW, the error of the weights after a "
        "step, over how far they move",
        minimum=0,
    )
    output_max_error: float | None = column(
        "largest error of an element against fp64, over the exact root mean square; the largest over the outputs",
        minimum=0,
    )
    gradient_rel_error: float | None = column("relative L2 error, the largest over the gradients", minimum=0)
    gradient_max_error: float | None = column(
        "largest error of an element, over the exact root mean square; the largest over the gradients", minimum=0
    )
    moved_bytes: int = derived("bytes that the phase must read and write, by formula", minimum=1)
    gb_per_s: float = derived("moved_bytes over the median time, in 10^9 bytes per second", positive=True)
    tflops_per_s: float | None = derived("rate of the head's matrix products, at the median time", positive=True)
    floor_ms: float = derived(
        "least time: moved_bytes at bandwidth_gb_per_s or the products at peak_tflops_per_s, whichever takes longer",
        positive=True,
    )
    floor_share_pct: float = derived("floor_ms over the median time", positive=True)
    bandwidth_gb_per_s: float = derived("memory bandwidth, reads and writes together", positive=True)
    bandwidth_source: str = derived("where the bandwidth comes from", allowed=PEAK_SOURCES)
    measured_gb_per_s: float | None = column(
        "rate of a large copy, counting bytes read and written, if no data sheet is known", positive=True
    )

    @classmethod
    def derive(cls, reading: Reading) -> dict[str, Any]:
        """Add bytes, rates and the least time."""
        found, row, cell = super().derive(reading), reading.row, reading.cell
        if "median_ms" not in found:
            return found
        moved = moved_bytes(cell.op, row["phase"], cell.widths, ELEMENT_BYTES[cell.dtype])
        flops, bandwidth = product_flops(cell.op, row["phase"], cell.widths), _bandwidth(reading)
        floor_ms, of_products = moved / bandwidth["bandwidth_gb_per_s"] / 1e6, {}
        if flops:
            peak = peak_columns(reading, cell.dtype)
            of_products = {**peak, "tflops_per_s": flops / found["median_ms"] / 1e9}
            floor_ms = max(floor_ms, flops / peak["peak_tflops_per_s"] / 1e9)
        return {
            **found,
            **bandwidth,
            **of_products,
            "moved_bytes": moved,
            "gb_per_s": moved / found["median_ms"] / 1e6,
            "floor_ms": floor_ms,
            "floor_share_pct": 100 * floor_ms / found["median_ms"],
        }


def _bandwidth(reading: Reading) -> dict[str, Any]:
    measured = reading.row.get("measured_gb_per_s")
    if measured is not None:
        return {"bandwidth_gb_per_s": measured, "bandwidth_source": "measured"}
    promised = datasheet_gb_per_s(gpu_name(reading))
    if promised is None:
        raise ValueError("memory bandwidth unknown: neither on a data sheet nor measured")
    return {"bandwidth_gb_per_s": promised, "bandwidth_source": "datasheet"}


ROW_TYPES = RowTypes.one(OperationTime)
