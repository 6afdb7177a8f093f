"""Columns of rows with rates: of whole training steps, and of implementations that are tried before they are timed."""

from dataclasses import dataclass
from typing import Any

from pipeline.cells.rates import peak_columns, step_rates
from pipeline.cells.rows import Reading, Row, column, derived
from pipeline.cells.timed_rows import GpuTimedRow

PEAK_SOURCES = ("datasheet", "measured")


@dataclass(frozen=True, kw_only=True)
class Rates(Row):
    """The rates of a training step."""

    tokens: int | None = derived("tokens a step: batch size times context length", minimum=1)
    tokens_per_s: float | None = derived("tokens over the median time", positive=True)
    model_tflops_per_s: float | None = derived(
        "FLOPs of the model's mathematics over the median time; what is computed twice does not count", positive=True
    )
    mfu_pct: float | None = derived("model FLOPs utilization: of the peak in this precision", positive=True)
    measured_peak_tflops_per_s: float | None = column(
        "rate of a large matrix product in this precision, where no data sheet is known", positive=True
    )
    peak_tflops_per_s: float | None = derived("peak in this precision", positive=True)
    peak_source: str | None = derived("where the peak comes from", allowed=PEAK_SOURCES)
    peak_bytes: int | None = column(
        "most that torch's allocator had given out on the GPU, of several the fullest", minimum=0
    )

    @classmethod
    def rates(
        cls, reading: Reading, median_ms: float, precision: str, tokens: int, step_flops: float | None
    ) -> dict[str, Any]:
        """Return tokens, rates and the peak of one GPU; step_flops: None of what has no rate."""
        shared = {"tokens": tokens, **peak_columns(reading, precision)}
        return shared if step_flops is None else shared | step_rates(median_ms, step_flops, shared)


@dataclass(frozen=True, kw_only=True)
class TriedRow(GpuTimedRow):
    """One phase of one implementation. Columns of the trial calls are filled even if the phase could not be timed."""

    KEYS = ("impl", "phase")

    package_version: str | None = column("version of a peer that is a package of its own")
    first_call_ms: float = column("first call, including compiling and loading, by the host clock", positive=True)
    extra_bytes: int | None = column("peak memory on the GPU that a call needs in addition to its inputs", minimum=0)
    clock: str = column(
        "device: CUDA events, L2 flushed, launches queued ahead; host: a CPU", allowed=("device", "host")
    )
    exposed_samples: int = column("samples that may hold gaps between launches", minimum=0)
    peak_tflops_per_s: float | None = derived("peak rate at this precision, of what has matrix products", positive=True)
    peak_source: str | None = derived("where the peak comes from", allowed=PEAK_SOURCES)
    measured_peak_tflops_per_s: float | None = column(
        "rate of a large matrix product in the dtype, where no data sheet is known", positive=True
    )
