"""Synthetic profile tables: traces of a simulated GPU, made into rows as real ones are."""

import itertools
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from statistics import median

import pandas as pd
import pytest

from pipeline.formulas.sizes import SIZES
from pipeline.instruments.profilers.trace import build_trace
from pipeline.registry import stages
from pipeline.report.frame import build
from pipeline.stages.profile.cell import PASSES, Cell, Settings
from pipeline.stages.profile.traced_rows import rows_of

from ...records import CPU, derived

MAIN, AUTOGRAD = 1, 2
LAUNCH_US = 5.0
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::{}, std::array<char *, 3>>(int, T2, T3)"
)
LINEAR = {"fp32": "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8", "bf16": "nvjet_tst_128x256_64x4_v_bz_TNT"}
LINEAR_BACKWARD = {"fp32": "sm80_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize128x128x8", "bf16": "nvjet_tst_192x192_NTN"}
SCORES = {"fp32": "ampere_sgemm_128x64_tn", "bf16": "nvjet_tst_64x128_bz_TNN"}
SOFTMAX = "void <unnamed>::softmax_warp_{}<float, float, float, (int)8, (bool)0, (bool)0>(T2 *, const T1 *, int, int)"
NORM = "void at::native::<unnamed>::vectorized_layer_norm_kernel<float, float, (bool)1>(int, T2, const T1 *)"
ADAMW = "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)4>>(T1)"
LOG_SOFTMAX = "void at::native::<unnamed>::cunn_SoftMaxForward<(int)4, float, float, float>(T4 *, const T2 *, int)"
COLUMNS = {
    "work": ["name", "stream", "start_us", "duration_us", "correlation"],
    "launches": ["correlation", "launch_us", "thread"],
    "ranges": ["name", "thread", "start_us", "duration_us"],
}


def trace_of(work, launches, ranges, profiler):
    """Make a trace of these tuples."""
    given = zip((work, launches, ranges), COLUMNS.values(), strict=True)
    return build_trace(*(pd.DataFrame(rows, columns=columns) for rows, columns in given), profiler)


class Simulator:
    """A host that launches every 5 us and waits nowhere, and a device that works in order."""

    def __init__(self):
        self.host_us = self.device_us = 0.0
        self.work, self.launches, self.ranges = [], [], []

    def kernel(self, name, duration_us, thread=MAIN):
        self.launches.append((len(self.launches), self.host_us, thread))
        self.host_us += LAUNCH_US
        start_us = max(self.host_us, self.device_us)
        self.work.append((name, 7, start_us, duration_us, len(self.work)))
        self.device_us = start_us + duration_us

    @contextmanager
    def range(self, name, synchronized=False):
        start_us = self.host_us
        yield
        if synchronized:
            self.host_us = max(self.host_us, self.device_us) + LAUNCH_US
        self.ranges.append((name, MAIN, start_us, self.host_us - start_us))

    def kernel_in(self, path, *kernel):
        """Run a kernel in ranges one in the other."""
        with ExitStack() as stack:
            for name in filter(None, path.split("/")):
                stack.enter_context(self.range(name))
                self.host_us += 1 / 8  # so that none begins with the one around it
            self.kernel(*kernel)

    def trace(self, profiler):
        return trace_of(self.work, self.launches, self.ranges, profiler)


def costs_us(cell):
    """Return the microseconds of a linear product, one of scores, a softmax and a pointwise kernel."""
    size, tokens = SIZES[cell.size], 4 * cell.context_length
    rate = {"fp32": 40e6, "bf16": 300e6}[cell.precision]  # FLOPs a us
    linear = 2 * tokens * size.d_model * (4 * size.d_model + 3 * size.d_ff) / 7 / rate
    scores = 2 * tokens * cell.context_length * size.d_model / rate
    return (
        linear,
        scores,
        tokens * cell.context_length * size.num_heads * 8 / 3e6 + 2,
        tokens * size.d_model * 8 / 3e6 + 2,
    )


def forward(device, cell, layers):
    linear_us, scores_us, softmax_us, pointwise_us = costs_us(cell)
    linear, scores = LINEAR[cell.precision], SCORES[cell.precision]
    kernels = [
        ("attention_norm", NORM, pointwise_us),
        *[("attention", linear, linear_us)] * 4,
        ("attention/attention/attention scores", scores, scores_us),
        ("attention/attention/attention scores", ELEMENTWISE.format("MulFunctor<float>"), pointwise_us),
        ("attention/attention/mask", ELEMENTWISE.format("CUDAFunctor_add<float>"), softmax_us),
        ("attention/attention/softmax", SOFTMAX.format("forward"), softmax_us),
        ("attention/attention/final matmul", scores, scores_us),
        ("", ELEMENTWISE.format("CUDAFunctor_add<float>"), pointwise_us),
        *[("feed_forward", linear, linear_us)] * 3,
    ]
    for index in range(layers):
        with device.range(f"layers.{index}"):
            for kernel in kernels:
                device.kernel_in(*kernel)


def backward(device, cell, layers):
    linear_us, _, softmax_us, pointwise_us = costs_us(cell)
    with device.range("backward"):
        for _ in range(layers):
            for _ in range(7):
                device.kernel(LINEAR[cell.precision], linear_us, AUTOGRAD)
                device.kernel(LINEAR_BACKWARD[cell.precision], 1.1 * linear_us, AUTOGRAD)
            device.kernel(SOFTMAX.format("backward"), 1.5 * softmax_us, AUTOGRAD)
            device.kernel(ELEMENTWISE.format("MulFunctor<float>"), 6 * pointwise_us, AUTOGRAD)


def run_pass(device, name, cell, layers):
    with device.range(name, synchronized=True):
        if name == "inference":
            forward(device, cell, layers)
            return
        with device.range("forward"):
            forward(device, cell, layers)
        device.kernel_in("loss", LOG_SOFTMAX, 30)
        backward(device, cell, layers)
        if name == "train_step":
            device.kernel_in("optimizer", ADAMW, 200)


def run_backward_by_part(device, cell):
    """Run one layer's attention backwards, in ranges as `ForwardRanges` opens them."""
    scores, softmax = (SCORES[cell.precision], 10), (SOFTMAX.format("backward"), 3 * costs_us(cell)[2])
    with device.range("backward_by_part"):
        with device.range("forward"):
            forward(device, cell, layers=1)
        with device.range("backward"):
            for phase, kernels in {
                "final matmul": [scores] * 2,
                "softmax": [softmax],
                "attention scores": [scores] * 2,
            }.items():
                with device.range(f"forward/layers.0/attention/attention/{phase}"):
                    for kernel in kernels:
                        device.kernel(*kernel)


def simulated(cell, settings, fitting=PASSES, layers=3):
    device = Simulator()
    for _, name in itertools.product(range(settings.captured_rounds), fitting):
        run_pass(device, name, cell, layers)
    if "forward_backward" in fitting:
        run_backward_by_part(device, cell)
    return device


def record(cell, fitting):
    """Make the record of a cell whose passes fit into memory but for those that are not among `fitting`."""
    settings = Settings(captured_rounds=2)
    profiler = "torch.profiler" if cell.profiler == "torch" else "nsys"
    rows = rows_of(simulated(cell, settings, fitting).trace(profiler), list(fitting), settings.top_kernels)
    spans = {row["range"]: median(row["samples_ms"]) for row in rows if row.get("clock") == "span"}
    for name in PASSES:
        found = {"status": "ok", "samples_ms": [1.01 * spans[name]] * 10} if name in fitting else {"status": "oom"}
        rows.append({"kind": "time", "range": name, "clock": "host", **found})
    machine = CPU | {"kind": "NVIDIA H200"}
    rows = derived(cell, settings, [row | {"captured_by": profiler} for row in rows], machine)
    return {"cell": asdict(cell), "settings": asdict(settings), "rows": rows, "machine": machine}


@pytest.fixture(scope="session")
def frame_of():
    """Make the stage's frame of captured cells by their axes; `fitting`: the passes that do not run out of memory."""

    def make(*cells, fitting=PASSES):
        return build(stages()["profile"], [record(Cell(**axes), fitting) for axes in cells])

    return make


@pytest.fixture
def quick():
    """Settings with which a cell of a tiny model takes a second."""
    return replace(Settings(), warmup_steps=1, steps=10, max_steps=10, budget_s=0.0, captured_rounds=2)
