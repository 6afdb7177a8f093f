"""Synthetic profile tables: traces of a simulated GPU, made into rows as real ones are."""

import itertools
import sqlite3
from contextlib import closing, contextmanager
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

from ...records import derived

MAIN, AUTOGRAD = 1, 2
LAUNCH_US = 5.0
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::{}, std::array<char *, 3>>(int, T2, T3)"
)
NAMES = {
    "linear": {
        "fp32": "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8",
        "bf16": "nvjet_tst_128x256_64x4_v_bz_TNT",
    },
    "linear_backward": {
        "fp32": "sm80_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize128x128x8",
        "bf16": "nvjet_tst_192x192_NTN",
    },
    "scores": {"fp32": "ampere_sgemm_128x64_tn", "bf16": "nvjet_tst_64x128_bz_TNN"},
}
SOFTMAX = "void <unnamed>::softmax_warp_{}<float, float, float, (int)8, (bool)0, (bool)0>(T2 *, const T1 *, int, int)"
NORM = "void at::native::<unnamed>::vectorized_layer_norm_kernel<float, float, (bool)1>(int, T2, const T1 *)"
ADAMW = "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)4>>(T1)"
LOG_SOFTMAX = "void at::native::<unnamed>::cunn_SoftMaxForward<(int)4, float, float, float>(T4 *, const T2 *, int)"


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
        self.device_us = round(8 * (start_us + duration_us)) / 8  # without a remainder in ns, and in binary

    @contextmanager
    def range(self, name, synchronized=False):
        start_us = self.host_us
        yield
        if synchronized:
            self.host_us = max(self.host_us, self.device_us) + LAUNCH_US
        self.ranges.append((name, MAIN, start_us, self.host_us - start_us))

    def write_export(self, path):
        """Write what happened as nsys exports it, as far as it is read."""
        names = {name: number for number, name in enumerate(sorted({work[0] for work in self.work}))}
        ns = [(round(1e3 * start), round(1e3 * (start + duration))) for _, _, start, duration, _ in self.work]
        work = zip(self.work, ns, strict=True)
        tables = {
            "StringIds (id, value)": [(number, name) for name, number in names.items()],
            "CUPTI_ACTIVITY_KIND_KERNEL (start, end, streamId, correlationId, demangledName)": [
                (start, end, stream, correlation, names[name]) for (name, stream, *_, correlation), (start, end) in work
            ],
            "CUPTI_ACTIVITY_KIND_RUNTIME (start, globalTid, correlationId)": [
                (round(1e3 * launch_us), thread, correlation) for correlation, launch_us, thread in self.launches
            ],
            "NVTX_EVENTS (start, end, eventType, text, globalTid, textId)": [
                (round(1e3 * start), round(1e3 * (start + duration)), 59, name, thread, None)
                for name, thread, start, duration in self.ranges
            ],
        }
        with closing(sqlite3.connect(path)) as database:
            for table, rows in tables.items():
                database.execute(f"CREATE TABLE {table}")
                places = ", ".join("?" * len(rows[0]))
                database.executemany(f"INSERT INTO {table.split()[0]} VALUES ({places})", rows)
            database.commit()

    def trace(self, profiler):
        return build_trace(
            pd.DataFrame(self.work, columns=["name", "stream", "start_us", "duration_us", "correlation"]),
            pd.DataFrame(self.launches, columns=["correlation", "launch_us", "thread"]),
            pd.DataFrame(self.ranges, columns=["name", "thread", "start_us", "duration_us"]),
            profiler,
        )


def forward(device, cell, layers):
    size, tokens = SIZES[cell.size], 4 * cell.context_length
    rate = {"fp32": 40e6, "bf16": 300e6}[cell.precision]  # FLOPs a us
    linear_us = 2 * tokens * size.d_model * (4 * size.d_model + 3 * size.d_ff) / 7 / rate
    scores_us = 2 * tokens * cell.context_length * size.d_model / rate
    softmax_us = tokens * cell.context_length * size.num_heads * 8 / 3e6 + 2
    pointwise_us = tokens * size.d_model * 8 / 3e6 + 2
    for index in range(layers):
        with device.range(f"layers.{index}"):
            with device.range("attention_norm"):
                device.kernel(NORM, pointwise_us)
            with device.range("attention"):
                for _ in range(4):
                    device.kernel(NAMES["linear"][cell.precision], linear_us)
                with device.range("attention"):
                    with device.range("attention scores"):
                        device.kernel(NAMES["scores"][cell.precision], scores_us)
                        device.kernel(ELEMENTWISE.format("MulFunctor<float>"), pointwise_us)
                    with device.range("mask"):
                        device.kernel(ELEMENTWISE.format("CUDAFunctor_add<float>"), softmax_us)
                    with device.range("softmax"):
                        device.kernel(SOFTMAX.format("forward"), softmax_us)
                    with device.range("final matmul"):
                        device.kernel(NAMES["scores"][cell.precision], scores_us)
            device.kernel(ELEMENTWISE.format("CUDAFunctor_add<float>"), pointwise_us)
            with device.range("feed_forward"):
                for _ in range(3):
                    device.kernel(NAMES["linear"][cell.precision], linear_us)
    return linear_us, softmax_us, pointwise_us


def backward(device, cell, layers, linear_us, softmax_us, pointwise_us):
    with device.range("backward"):
        for _ in range(layers):
            for _ in range(7):
                device.kernel(NAMES["linear"][cell.precision], linear_us, AUTOGRAD)
                device.kernel(NAMES["linear_backward"][cell.precision], 1.1 * linear_us, AUTOGRAD)
            device.kernel(SOFTMAX.format("backward"), 1.5 * softmax_us, AUTOGRAD)
            device.kernel(ELEMENTWISE.format("MulFunctor<float>"), 6 * pointwise_us, AUTOGRAD)


def run_pass(device, name, cell, layers):
    with device.range(name, synchronized=True):
        if name == "inference":
            forward(device, cell, layers)
            return
        with device.range("forward"):
            costs = forward(device, cell, layers)
        with device.range("loss"):
            device.kernel(LOG_SOFTMAX, 30)
        backward(device, cell, layers, *costs)
        if name == "train_step":
            with device.range("optimizer"):
                device.kernel(ADAMW, 200)


def run_backward_by_part(device, cell):
    """Run one layer's attention backwards, in ranges as `ForwardRanges` opens them."""
    with device.range("backward_by_part"):
        with device.range("forward"):
            costs = forward(device, cell, layers=1)
        with device.range("backward"):
            for phase in ("final matmul", "softmax", "attention scores"):
                with device.range(f"forward/layers.0/attention/attention/{phase}"):
                    if phase == "softmax":
                        device.kernel(SOFTMAX.format("backward"), 3 * costs[1])
                        continue
                    for _ in range(2):
                        device.kernel(NAMES["scores"][cell.precision], 10)


def simulated(cell, settings, fitting=PASSES, layers=3):
    device = Simulator()
    for _, name in itertools.product(range(settings.captured_rounds), fitting):
        run_pass(device, name, cell, layers)
    if "forward_backward" in fitting:
        run_backward_by_part(device, cell)
    return device


def host_row(name, samples_ms, status="ok", reason=None):
    row = {"kind": "time", "range": name, "clock": "host", "status": status}
    figures = {"samples_ms": samples_ms} if samples_ms else {}
    return row | ({"reason": reason} if reason else {}) | figures


def record(cell, machine, fitting=PASSES, layers=3):
    """Make the record of a cell, as far as tables are made of it."""
    settings = Settings(captured_rounds=2)
    rows = captured(cell, settings, fitting, layers)
    software = {"python": "3.12.3", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "driver": "580.65"}
    facts = {"kind": machine, "software": software}
    return {
        "cell": asdict(cell),
        "settings": asdict(settings),
        "rows": derived(cell, settings, rows, facts),
        "machine": facts,
    }


def captured(cell, settings, fitting, layers):
    """Make the rows of a cell whose passes fit into memory but for those that are not among `fitting`."""
    profiler = "torch.profiler" if cell.profiler == "torch" else "nsys"
    trace = simulated(cell, settings, fitting, layers).trace(profiler)
    rows = rows_of(trace, list(fitting), settings.top_kernels)
    spans = {row["range"]: median(row["samples_ms"]) for row in rows if row.get("clock") == "span"}
    rows += [host_row(name, [1.01 * spans[name]] * 10) for name in fitting]
    rows += [host_row(name, [], "oom", "CUDA out of memory") for name in PASSES if name not in fitting]
    return [row | {"captured_by": profiler} for row in rows]


@pytest.fixture(scope="session")
def frame_of():
    """Make the stage's frame of captured cells by their axes; `fitting`: the passes that do not run out of memory."""

    def make(*cells, fitting=PASSES):
        return build(stages()["profile"], [record(Cell(**axes), "NVIDIA H200", fitting=fitting) for axes in cells])

    return make


@pytest.fixture
def simulate():
    """Return the function that simulates a cell's capture on a GPU: (cell, settings, passes) -> Simulator."""
    return simulated


@pytest.fixture
def quick():
    """Settings with which a cell of a tiny model takes a second."""
    return replace(Settings(), warmup_steps=1, steps=10, max_steps=10, budget_s=0.0, captured_rounds=2)
