import gzip
import json

import pandas as pd
import pytest
import torch

from pipeline.formulas.sizes import SIZES
from pipeline.instruments.profilers import torch_profiler
from pipeline.instruments.profilers.intervals import union_us
from pipeline.instruments.profilers.nsys import CaptureFailed
from pipeline.instruments.profilers.trace import events_of, range_times
from pipeline.model.step import build_training_step
from pipeline.ranges import span

LAYERS = SIZES["tiny"].num_layers


def program(device):
    step = build_training_step(
        SIZES["tiny"], vocab_size=50, context_length=16, batch_size=2, precision="fp32", device=device
    )
    step.run()

    def run():
        with span("train_step"):
            step.run()
            if device != "cpu":
                torch.cuda.synchronize()

    return run


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "trace.json.gz"
    return torch_profiler.capture(program("cpu"), torch.device("cpu"), path), path


def test_operators_have_the_path_of_their_range_and_count_as_one_call_each(on_cpu):
    trace, _ = on_cpu
    paths = set(trace.events["path"])
    assert trace.profiler == "torch.profiler"
    assert {f"train_step/{name}" for name in ("loss", "backward", "optimizer")} <= paths
    softmax = trace.events[trace.events["path"] == "train_step/forward/attention/softmax"]
    assert "aten::_softmax" in set(softmax["name"])
    products = trace.events.query("name == 'aten::mm'").groupby("path")["calls"].sum()
    assert products["train_step/forward"] == 7 * LAYERS + 1
    assert products["train_step/backward"] == 2 * (7 * LAYERS + 1)
    # PyTorch's own ranges are not ranges here, and the nodes of its graph are not work.
    assert not trace.ranges["name"].str.contains("#").any()
    assert not trace.events["name"].str.contains("autograd|Backward0").any()


def test_operator_pieces_never_overlap_and_add_up_to_the_time_in_operators(on_cpu):
    trace, path = on_cpu
    events = events_of(trace, "train_step")
    times = range_times(trace, "train_step").iloc[0]
    assert union_us(events) == pytest.approx(events["duration_us"].sum(), abs=1e-3)
    with gzip.open(path, "rt") as file:  # as Perfetto does
        found = [event for event in json.load(file)["traceEvents"] if event.get("cat") == "cpu_op"]
    noted = pd.DataFrame(found)[["name", "ts", "dur"]].set_axis(["name", "start_us", "duration_us"], axis=1)
    operators = noted["name"].str.startswith("aten::")
    without_a_namespace = noted["name"].str.fullmatch("[a-z_]+")  # inside operators, such as "detach"
    in_operators_us = union_us(noted[operators]) - union_us(noted[without_a_namespace])
    assert times["kernel_sum_us"] == pytest.approx(in_operators_us)
    assert times["kernel_sum_us"] <= times["span_us"] <= times["range_us"]


def test_a_truncated_trace_gives_a_one_line_error(on_cpu, tmp_path):
    path = tmp_path / "cut.json.gz"
    path.write_bytes(on_cpu[1].read_bytes()[:2000])
    with pytest.raises(CaptureFailed, match=r"^cut.json.gz is no whole trace of torch.profiler: .+$"):
        torch_profiler.read_trace(path)


def write(path, events):
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)
    return path


def complete(category, name, ts, dur, tid=1, **arguments):
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": arguments}


def test_kernels_belong_to_the_range_of_their_launch_through_runtime_or_driver(tmp_path):
    events = [
        complete("user_annotation", "forward", 0, 50),
        complete("gpu_user_annotation", "forward", 60, 100),
        complete("user_annotation", "Optimizer.step#AdamW.step", 0, 500),
        complete("user_annotation", "backward", 55, 20),
        complete("cpu_op", "aten::mm", 5, 10),
        complete("cuda_runtime", "cudaLaunchKernel", 8, 4, correlation=11),
        complete("cuda_driver", "cuLaunchKernelEx", 60, 4, tid=9, correlation=12),
        complete("cuda_runtime", "cudaMemcpyAsync", 30, 4, correlation=13),
        complete("cuda_runtime", "cudaDeviceSynchronize", 90, 4),
        complete("kernel", "ampere_sgemm_128x64_tn", 70, 30, tid=7, stream=7, correlation=11),
        complete("kernel", "nvjet_tst_64x8", 100, 20, tid=7, stream=7, correlation=12),
        complete("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 120, 5, tid=7, stream=7, correlation=13),
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "ts": 70, "tid": 7},
    ]
    found = torch_profiler.read_trace(write(tmp_path / "cuda.json.gz", events)).events
    assert found[["name", "path", "category", "stream"]].to_numpy().tolist() == [
        ["ampere_sgemm_128x64_tn", "forward", "matmul", 7],
        ["nvjet_tst_64x8", "backward", "matmul", 7],
        ["Memcpy DtoD (Device -> Device)", "forward", "copy", 7],
    ]


@pytest.mark.parametrize(
    ("events", "lack"),
    [([complete("user_annotation", "forward", 0, 50)], "work"), ([complete("cpu_op", "aten::mm", 0, 5)], "range")],
)
def test_a_capture_without_work_or_ranges_says_so(tmp_path, events, lack):
    with pytest.raises(CaptureFailed, match=rf"^empty.json.gz holds no {lack}$"):
        torch_profiler.read_trace(write(tmp_path / "empty.json.gz", events))


@pytest.mark.gpu
def test_a_gpu_capture_has_forward_and_backward_kernels_in_their_ranges(tmp_path):
    trace = torch_profiler.capture(program("cuda"), torch.device("cuda"), tmp_path / "trace.json.gz")
    matmuls = trace.events[trace.events["category"] == "matmul"].groupby("path")["calls"].sum()
    assert matmuls["train_step/forward"] >= 7 * LAYERS + 1
    assert matmuls["train_step/backward"] >= 2 * (7 * LAYERS + 1)
    assert not trace.events["name"].str.startswith("aten::").any()
