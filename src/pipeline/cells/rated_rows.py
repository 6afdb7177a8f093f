"""Rates derived from a median time, and the rows that have them: training steps and implementations."""

from dataclasses import dataclass
from typing import Any

from pipeline.cells.rows import Reading, Row, column, derived
from pipeline.cells.timed_rows import GpuTimedRow
from pipeline.instruments.machine.peaks import datasheet_peak_tflops

PEAK_SOURCES = ("datasheet", "measured")


@dataclass(frozen=True, kw_only=True)
class Rates(Row):
    """The rates of a training step."""

    tokens: int | None = derived("tokens per step: batch size times context length", minimum=1)
    tokens_per_s: float | None = derived("tokens over the median time", positive=True)
    model_tflops_per_s: float | None = derived(
        "FLOPs of the model's mathematics over the median time; recomputation does not count", positive=True
    )
    mfu_pct: float | None = derived("model FLOPs utilization: share of the peak in this precision", positive=True)
    measured_peak_tflops_per_s: float | None = column(
        "rate of a large matrix product in this precision, if no data sheet is known", positive=True
    )
    peak_tflops_per_s: float | None = derived("peak rate in this precision", positive=True)
    peak_source: str | None = derived("where the peak comes from", allowed=PEAK_SOURCES)
    peak_bytes: int | None = column(
        "peak memory that torch allocated on the GPU, or on the fullest of several", minimum=0
    )

    @classmethod
    def rates(
        cls, reading: Reading, median_ms: float, precision: str, tokens: int, step_flops: float | None
    ) -> dict[str, Any]:
        """Return tokens, one GPU's peak, rates and, if the peak is known, MFU; step_flops: None if there is no rate."""
        found = {"tokens": tokens, **peak_columns(reading, precision)}
        if step_flops is None:
            return found
        tflops_per_s, peak = step_flops / median_ms / 1e9, found.get("peak_tflops_per_s")
        found |= {"tokens_per_s": tokens / median_ms * 1e3, "model_tflops_per_s": tflops_per_s}
        return found | ({"mfu_pct": 100 * tflops_per_s / peak} if peak else {})


@dataclass(frozen=True, kw_only=True)
class TriedRow(GpuTimedRow):
    """One phase of one implementation. Columns of the trial calls are filled even if the phase could not be timed."""

    KEYS = ("impl", "phase")

    package_version: str | None = column("version of a peer that is a separate package")
    first_call_ms: float = column("first call, including compiling and loading, by the host clock", positive=True)
    extra_bytes: int | None = column("peak memory on the GPU that a call needs in addition to its inputs", minimum=0)
    clock: str = column(
        "device: CUDA events, L2 flushed, launches queued ahead; host: the host's clock, on a CPU",
        allowed=("device", "host"),
    )
    exposed_samples: int = column("samples that may include gaps between launches", minimum=0)
    peak_tflops_per_s: float | None = derived(
        "peak rate in this precision; empty without matrix products", positive=True
    )
    peak_source: str | None = derived("where the peak comes from", allowed=PEAK_SOURCES)
    measured_peak_tflops_per_s: float | None = column(
        "rate of a large matrix product in the dtype, if no data sheet is known", positive=True
    )


def peak_columns(reading: Reading, dtype: str) -> dict[str, Any]:
    """Return the GPU's peak and its source: measured, else the data sheet's for this dtype; empty if unknown."""
    measured = reading.row.get("measured_peak_tflops_per_s")
    if measured is not None:
        return {"peak_tflops_per_s": measured, "peak_source": "measured"}
    datasheet_tflops = datasheet_peak_tflops(gpu_name(reading), dtype)
    return {} if datasheet_tflops is None else {"peak_tflops_per_s": datasheet_tflops, "peak_source": "datasheet"}


def gpu_name(reading: Reading) -> str:
    """Return the model of the machine's first GPU; empty if it has none."""
    gpus = reading.machine.get("gpus") or [{}]
    return gpus[0].get("name", "")
