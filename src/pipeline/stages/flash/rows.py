"""Rows of the flash stage: time, rate, memory and errors by implementation and phase."""

from dataclasses import dataclass
from typing import ClassVar

from pipeline.cells.rows import RowTypes, column
from pipeline.cells.timed_rows import GpuTimedRow
from pipeline.stages.flash.cell import OURS, PEERS, PHASES, SDPA_BACKENDS


@dataclass(frozen=True, kw_only=True)
class ImplementationTime(GpuTimedRow):
    """One phase of one implementation. Columns of the trial calls are filled even if the phase could not be timed."""

    KEYS = ("impl", "phase")
    # On a CPU it is what is compared: Triton needs a GPU.
    REFERENCE: ClassVar = {"impl": "tiled", "clock": "device"}

    impl: str = column("implementation: ours, then torch's", allowed=(*OURS, *PEERS), or_subject=True)
    phase: str = column(
        "forward: the output; backward: the gradients of q, k and v; forward_backward: one after the other",
        allowed=PHASES,
    )
    first_call_ms: float = column("first call, including compiling and loading, by the host clock", positive=True)
    extra_bytes: int | None = column("peak memory on the GPU that a call needs in addition to its inputs", minimum=0)
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
    clock: str = column(
        "device: CUDA events, L2 flushed, launches queued ahead; host: a CPU", allowed=("device", "host")
    )
    tflops_per_s: float = column("FLOPs of the phase, without masked scores, over the median time", positive=True)
    peak_share_pct: float = column("tflops_per_s over peak_tflops_per_s", positive=True)
    peak_tflops_per_s: float = column("peak rate at this precision", positive=True)
    peak_source: str = column("where the peak comes from", allowed=("datasheet", "measured"))
    peak_of: str = column("what the peak is for: a dtype, or 3×TF32, which is as exact as fp32")
    sustained_ms: float | None = column(
        "run back to back for sustained_s on a GPU, L2 not flushed: median over the second half; only of our Triton "
        "kernels and cuDNN at several heads, and empty where the GPU waited for its host",
        positive=True,
    )
    sustained_tflops_per_s: float | None = column("FLOPs of the phase over sustained_ms", positive=True)
    sustained_sm_clock_mhz: float | None = column("mean SM clock meanwhile", minimum=0)
    sdpa_choice: str | None = column("backend that SDPA chooses by itself; empty if another", allowed=SDPA_BACKENDS)
    exposed_samples: int = column("samples that may hold gaps between launches", minimum=0)
    median_call_ms: float | None = column(
        "single call with nothing queued, by the host clock, until its work is done: median", positive=True
    )
    q1_call_ms: float | None = column("single call until its work is done: first quartile", positive=True)
    q3_call_ms: float | None = column("single call until its work is done: third quartile", positive=True)
    median_enqueue_ms: float | None = column("single call until it returns to the host: median", positive=True)
    q1_enqueue_ms: float | None = column("single call until it returns to the host: first quartile", positive=True)
    q3_enqueue_ms: float | None = column("single call until it returns to the host: third quartile", positive=True)


ROW_TYPES = RowTypes.one(ImplementationTime)
