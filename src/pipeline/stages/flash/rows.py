"""Rows of the flash stage: time, rate, memory and errors by implementation and phase."""

from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.cells.rated_rows import TriedRow, gpu_name
from pipeline.cells.rows import Reading, RowTypes, column, derived
from pipeline.formulas.attention import pass_flops
from pipeline.instruments.machine.peaks import datasheet_peak_tflops
from pipeline.stages.flash.cell import FA4, OURS, PEERS, PHASES, SDPA_BACKENDS, THREE_TF32, TILES


@dataclass(frozen=True, kw_only=True)
class ImplementationTime(TriedRow):
    """One phase of one implementation. Columns of the trial calls are filled even if the phase could not be timed."""

    # On a CPU (clock `host`) it is compared like the others, because Triton needs a GPU.
    REFERENCE: ClassVar = {"impl": "tiled", "clock": "device"}

    impl: str = column(
        "implementation: ours, also with square tiles (side in the name), then torch's, then FlashAttention-4",
        allowed=(*OURS, *TILES, *PEERS, FA4),
        or_subject=True,
    )
    phase: str = column(
        "forward: the output; backward: the gradients of q, k and v; forward_backward: one after the other",
        allowed=PHASES,
    )
    output_rel_error: float | None = column("relative L2 error of the output, forward, against fp64", minimum=0)
    output_max_error: float | None = column("largest absolute error of the output, forward, against fp64", minimum=0)
    dq_rel_error: float | None = column("relative L2 error of the gradient of q, backward, against fp64", minimum=0)
    dq_max_error: float | None = column(
        "largest absolute error of the gradient of q, backward, against fp64", minimum=0
    )
    dk_rel_error: float | None = column("relative L2 error of the gradient of k, backward, against fp64", minimum=0)
    dk_max_error: float | None = column(
        "largest absolute error of the gradient of k, backward, against fp64", minimum=0
    )
    dv_rel_error: float | None = column("relative L2 error of the gradient of v, backward, against fp64", minimum=0)
    dv_max_error: float | None = column(
        "largest absolute error of the gradient of v, backward, against fp64", minimum=0
    )
    tflops_per_s: float = derived("FLOPs of the phase, without masked scores, over the median time", positive=True)
    peak_share_pct: float = derived("tflops_per_s over peak_tflops_per_s", positive=True)
    peak_of: str = derived("what the peak is for: a dtype, or 3×TF32, which is as exact as fp32")
    measured_tf32_peak_tflops_per_s: float | None = column(
        "rate of a large matrix product in TF32, if no data sheet is known; only for fp32 on a GPU with TF32",
        positive=True,
    )
    sustained_ms: float | None = column(
        "median over the second half of sustained_s of back-to-back calls on a GPU, L2 not flushed; only for our "
        "Triton kernels, cuDNN and FlashAttention-4 at several heads; empty if the GPU waited for its host",
        positive=True,
    )
    sustained_tflops_per_s: float | None = derived("FLOPs of the phase over sustained_ms", positive=True)
    sustained_sm_clock_mhz: float | None = column("mean SM clock over the same half", minimum=0)
    sdpa_choice: str | None = column("backend that SDPA chooses by itself; empty if another", allowed=SDPA_BACKENDS)
    median_call_ms: float | None = column(
        "single call with nothing queued, by the host clock, until its work is done: median", positive=True
    )
    q1_call_ms: float | None = column("single call until its work is done: first quartile", positive=True)
    q3_call_ms: float | None = column("single call until its work is done: third quartile", positive=True)
    median_enqueue_ms: float | None = column("single call until it returns to the host: median", positive=True)
    q1_enqueue_ms: float | None = column("single call until it returns to the host: first quartile", positive=True)
    q3_enqueue_ms: float | None = column("single call until it returns to the host: third quartile", positive=True)

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Return the rates, and the peak that they are a share of."""
        flops, peak = pass_flops(reading.cell.shape, reading.row["phase"]), _peak(reading)
        rate = flops / median_ms / 1e9
        sustained_ms = reading.row.get("sustained_ms")
        return {
            **peak,
            "tflops_per_s": rate,
            "peak_share_pct": 100 * rate / peak["peak_tflops_per_s"],
            "sustained_tflops_per_s": flops / sustained_ms / 1e9 if sustained_ms else None,
        }


def _peak(reading: Reading) -> dict[str, Any]:
    """Return the peak rate at the cell's precision.

    For fp32 on tensor cores that is a third of the TF32 peak, because a product takes three TF32 products, or six in
    bf16, which take as long; or the peak without tensor cores if that is higher.
    """
    row, dtype = reading.row, reading.cell.dtype
    measured = {"peak_source": "measured"} if row.get("measured_peak_tflops_per_s") else {"peak_source": "datasheet"}
    own = row.get("measured_peak_tflops_per_s") or datasheet_peak_tflops(gpu_name(reading), dtype)
    if own is None:
        raise ValueError(f"peak rate in {dtype} unknown: neither on a data sheet nor measured")
    if dtype == "fp32":
        tf32 = row.get("measured_tf32_peak_tflops_per_s") or datasheet_peak_tflops(gpu_name(reading), "tf32")
        if tf32 is not None and tf32 / 3 > own:
            return measured | {"peak_tflops_per_s": tf32 / 3, "peak_of": THREE_TF32}
    return measured | {"peak_tflops_per_s": own, "peak_of": dtype}


ROW_TYPES = RowTypes.one(ImplementationTime)
