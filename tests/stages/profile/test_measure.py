import gzip
import json
from dataclasses import replace
from itertools import product

import pandas as pd
import pytest
import torch

from pipeline.errors import Skipped
from pipeline.instruments.profilers import nsys, torch_profiler
from pipeline.instruments.profilers.gpu_busy import GpuBusy
from pipeline.stages.profile import measure, workload
from pipeline.stages.profile.cell import PASSES, Cell, Settings

from ...records import derived, rows_read
from .conftest import QUICK, trace_of

TINY = Cell(size="tiny", context_length=16)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Measure a tiny model on the CPU once; return its rows and the folder of its files."""
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        rows = rows_read(measure.measure, TINY, QUICK, folder)
    return pd.DataFrame(rows), folder


def test_every_pass_has_every_clock_and_a_perfetto_trace_and_all_kernels_are_kept(measured):
    assert set(measured[0]["not_by_nsys"]) == {"nsys captures need a CUDA GPU"}
    times = measured[0].query("kind == 'time'")
    for name in PASSES:
        clocks = times[times["range"] == name].set_index("clock")["median_ms"]
        assert set(clocks.index) == {"host", "profiled", "span", "busy", "kernel_sum"}
        assert clocks["kernel_sum"] <= clocks["span"] <= clocks["profiled"]
    samples = times[times["range"] == "train_step"].set_index("clock")["n"]
    assert (samples["span"], samples["host"]) == (2, 10)
    rows, folder = measured
    assert sorted(path.name for path in folder.iterdir()) == ["kernels.csv", "perfetto.json.gz"]
    with gzip.open(folder / "perfetto.json.gz", "rt") as file:
        assert json.load(file)["traceEvents"]
    kernels = pd.read_csv(folder / "kernels.csv")
    assert set(kernels["range"]) == set(PASSES)
    for name in PASSES:
        listed = kernels.loc[kernels["range"] == name, "time_ms"].sum()
        summed = rows.query("kind == 'time' and clock == 'kernel_sum' and range == @name")["mean_ms"].iloc[0]
        assert listed == pytest.approx(summed)


def test_only_training_steps_have_the_optimizer_and_attentions_phases_are_found(measured):
    by_range = measured[0].query("kind == 'category'").groupby("range")
    shares = by_range["category"].agg(set)
    assert ["optimizer" in shares[name] for name in PASSES] == [False, False, True]
    assert shares["train_step/optimizer"] == {"optimizer"}
    assert by_range["share_pct"].sum().tolist() == pytest.approx([100] * len(shares))
    sums_ms = measured[0].query("clock == 'kernel_sum'").set_index("range")["mean_ms"]
    assert by_range["time_ms"].sum().to_dict() == pytest.approx(sums_ms.to_dict())
    phases = measured[0].query("kind == 'attention'").set_index(["range", "phase"])
    assert (phases.loc[("inference", "attention scores"), "matmul_ms"]) > 0
    both = ("attention scores", "softmax", "final matmul")
    assert set(phases.index) == {("inference", "mask"), *product(("inference", "backward_by_part"), both)}


def test_if_a_pass_runs_out_of_memory_only_smaller_ones_are_measured(monkeypatch, tmp_path):
    calls = workload.calls

    def no_memory():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB\nand more lines")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(workload, "calls", lambda step: calls(step) | {"forward_backward": no_memory})
    rows = pd.DataFrame(rows_read(measure.measure, TINY, QUICK, tmp_path))
    outcomes = rows[rows["clock"] == "host"].set_index("range")
    assert set(outcomes.loc[["forward_backward", "train_step"], "status"]) == {"oom"}
    assert outcomes.loc["train_step", "reason"] == "CUDA out of memory. Tried to allocate 20 GiB"
    assert set(rows.loc[rows["kind"] == "category", "range"]) == {"inference"}


def test_no_sample_starts_with_the_gradients_of_the_one_before():
    step = workload.build(TINY, QUICK, CPU)
    weight = next(step.model.parameters())
    have_gradients = []
    step.model.register_forward_pre_hook(lambda *_: have_gradients.append(weight.grad is not None))
    measure._sample(step, "forward_backward", QUICK)
    assert have_gradients == [False] * (QUICK.warmup_steps + QUICK.steps)


def test_each_pass_has_gpu_activity_next_to_its_wall_time(monkeypatch):
    profiled = []

    def profile_gpu_busy(run, _device):
        profiled.append(run)
        run()
        return GpuBusy(1e-6, 9, 0.0, 1.0)

    monkeypatch.setattr(measure, "profile_gpu_busy", profile_gpu_busy)
    read = [row | {"captured_by": "nsys"} for row in measure._host_clock(TINY, QUICK, CPU)]
    rows = derived(TINY, QUICK, read)
    assert [row["launches"] for row in rows] == [9] * len(PASSES) == [9] * len(profiled)
    assert {row["limited_by"] for row in rows} == {"host"}
    assert all(row["gpu_idle_pct"] == pytest.approx(100, abs=1) for row in rows)


def test_a_capture_begins_after_every_pass_is_warmed_up(monkeypatch, tmp_path):
    step = workload.build(TINY, QUICK, CPU)
    forwards = []
    step.model.register_forward_hook(lambda *_: forwards.append("forward"))
    monkeypatch.setattr(workload, "build", lambda *_: step)
    monkeypatch.setattr(torch_profiler, "capture", lambda *_: len(forwards))
    before, why = measure._capture("no nsys", TINY, QUICK, list(PASSES), CPU, tmp_path)
    assert (before, why) == (QUICK.warmup_steps * len(PASSES), "no nsys")


def test_a_failed_nsys_capture_falls_back_to_torch_unless_nsys_was_asked_for(monkeypatch, tmp_path):
    def fails(*_arguments):
        raise nsys.CaptureFailed("capture.sqlite is no whole nsys export: file is not a database")

    monkeypatch.setattr(nsys, "capture", fails)
    passes = ["inference"]
    trace, why = measure._capture("", TINY, QUICK, passes, CPU, tmp_path)
    assert (trace.profiler, why) == ("torch.profiler", "capture.sqlite is no whole nsys export: file is not a database")
    by_name = replace(TINY, profiler="nsys")  # asked for: no fallback
    with pytest.raises(Skipped, match="no whole nsys export"):
        measure._capture("", by_name, QUICK, passes, CPU, tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Skipped, match="nsys captures need a CUDA GPU"):
        rows_read(measure.measure, by_name, Settings(), tmp_path)


def test_an_nsys_capture_is_exported_and_read_and_the_database_is_deleted(monkeypatch, tmp_path):
    captured = trace_of([("gemm", 7, 5.0, 4.0, 1)], [(1, 1.0, 1)], [("inference", 1, 0.0, 10.0)])
    monkeypatch.setattr(nsys, "capture", lambda _command, report: report.write_text("a report"))
    monkeypatch.setattr(nsys, "export", lambda report, database: database.write_text(f"{report.read_text()}'s export"))
    monkeypatch.setattr(measure, "read_export", lambda database: {"a report's export": captured}[database.read_text()])
    assert measure._capture("", TINY, QUICK, list(PASSES), torch.device("cuda"), tmp_path) == (captured, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["capture.nsys-rep", "perfetto.json.gz"]


def test_the_command_under_nsys_runs_the_same_cell(monkeypatch):
    cell = Cell(precision="bf16", size="tiny", context_length=16)
    _, dash_m, module, *arguments = workload.command(cell, QUICK, PASSES)
    assert (dash_m, module) == ("-m", "pipeline.stages.profile.workload")
    built = []

    def build(*what):
        built.append(what)
        raise KeyboardInterrupt  # what follows needs a GPU

    monkeypatch.setattr(workload, "build", build)
    with pytest.raises(KeyboardInterrupt):
        workload.main(arguments)
    assert built == [(cell, QUICK, torch.device("cuda"))]


@pytest.mark.gpu
@pytest.mark.parametrize("profiler", ["auto", "nsys", "torch"])
def test_on_a_gpu_kernels_have_categories_and_the_clocks_agree(profiler, tmp_path):
    cell = Cell(size="small", context_length=256, profiler=profiler)
    settings = replace(QUICK, captured_rounds=3, warmup_steps=5)
    try:
        rows = pd.DataFrame(rows_read(measure.measure, cell, settings, tmp_path))
    except Skipped as skipped:
        pytest.skip(str(skipped))
    times = rows.query("kind == 'time' and range == 'inference'").set_index("clock")["median_ms"]
    if rows["captured_by"].iloc[0] == "nsys":
        assert times["span"] == pytest.approx(times["host"], rel=0.2)
    else:  # torch's profiler takes the host longer than the GPU needs for so small a model
        assert times["busy"] <= 1.2 * times["host"]
    assert times["busy"] <= times["span"] <= 1.05 * times["profiled"]
    shares = rows.query("kind == 'category'")
    assert (shares.loc[shares["category"] == "other", "share_pct"] < 2).all()
    backward = shares.query("range == 'train_step/backward' and category == 'matmul'")
    assert backward["count"].iloc[0] >= 2 * (7 * 12 + 1)
    attention = rows.query("kind == 'attention' and range == 'backward_by_part'").set_index("phase")
    assert attention.loc["final matmul", "matmul_ms"] > 0
    assert attention.loc["softmax", "time_ms"] > 0
    assert (tmp_path / "capture.nsys-rep").exists() == (rows["captured_by"].iloc[0] == "nsys")
