"""Measure a profile cell: time the passes by the host clock without a profiler, then capture them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeline.errors import Skipped
from pipeline.instruments.machine.pinning import pinned
from pipeline.instruments.memory.out_of_memory import free_memory, is_out_of_memory
from pipeline.instruments.profilers import nsys, torch_profiler
from pipeline.instruments.profilers.gpu_busy import GpuBusy, profile_gpu_busy, step_columns
from pipeline.instruments.profilers.nsys_export import read_export
from pipeline.instruments.profilers.perfetto import write_perfetto
from pipeline.instruments.profilers.trace import Trace
from pipeline.instruments.sampling.gpu_readings import gpu_columns
from pipeline.instruments.sampling.step_timing import Sampling, StopRule, time_phases
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.model.step import TrainingStep
from pipeline.stages.profile import workload
from pipeline.stages.profile.cell import PASSES, Cell, Settings
from pipeline.stages.profile.traced_rows import kernel_table, rows_of

Row = dict[str, Any]


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch, files_dir: Path) -> list[Row]:
    """Return rows of times, categories, kernels, attention's phases and one layer; keep the capture in `files_dir`.

    A pass that runs out of memory becomes a row of status oom and is left out of the capture. Raises Skipped if the
    requested profiler does not work here.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    profiler, why = _choose_profiler(cell.profiler, device)
    with stopwatch.measuring():
        host = _host_clock(cell, settings, device)
    passes = [row["range"] for row in host if row["status"] != "oom"]
    if not passes:
        return host
    with stopwatch.measuring():
        trace, why = _capture(profiler, why, cell, settings, passes, device, files_dir)
    kernel_table(trace, passes).to_csv(files_dir / "kernels.csv", index=False)
    captured = {"captured_by": trace.profiler} | ({"not_by_nsys": why} if why else {})
    return [{**row, **captured} for row in host + rows_of(trace, passes, cell, settings)]


def _choose_profiler(asked: str, device: torch.device) -> tuple[str, str]:
    """Return the profiler to use, nsys or torch, and why nsys cannot be used, if it was wanted."""
    if asked == "torch":
        return "torch", ""
    obstacle = "nsys captures need a CUDA GPU" if device.type != "cuda" or torch.version.hip else nsys.obstacle()
    if obstacle and asked == "nsys":
        raise Skipped(obstacle)
    return ("torch", obstacle) if obstacle else ("nsys", "")


def _host_clock(cell: Cell, settings: Settings, device: torch.device) -> list[Row]:
    """Time each pass by the host clock, smallest first; after one that runs out of memory all larger ones are oom."""
    step = workload.build(cell, settings, device)
    samplings: dict[str, Sampling] = {}
    failed: list[Row] = []
    with pinned(device) as core:
        for name in PASSES:
            try:
                samplings[name] = _sample(step, name, settings)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                outcome = {"status": "oom", "reason": str(error).splitlines()[0]}
                failed = [_host_key(remaining) | outcome for remaining in PASSES[len(samplings) :]]
                workload.drop_gradients(step)
                break
        # After all timed passes, because the profiler stays attached.
        busy = {name: profile_gpu_busy(partial(_run_pass, step, name), device) for name in samplings}
    del step
    free_memory()  # the capture builds the model again; nsys in another process
    rows = [_host_row(name, sampling, busy[name]) for name, sampling in samplings.items()]
    return [row | {"pinned_core": core} for row in rows] + failed


def _run_pass(step: TrainingStep, name: str) -> None:
    workload.calls(step)[name]()
    workload.drop_gradients(step)


def _sample(step: TrainingStep, name: str, settings: Settings) -> Sampling:
    phases: dict[str, Callable[[], object]] = {
        name: workload.calls(step)[name],
        "drop gradients": partial(workload.drop_gradients, step),
    }
    rule = StopRule(settings.steps, settings.max_steps, settings.rel_error, settings.budget_s)
    return time_phases(phases, step.tokens.device, settings.warmup_steps, rule)


def _host_key(name: str) -> Row:
    return {"kind": "time", "range": name, "clock": "host"}


def _host_row(name: str, sampling: Sampling, busy: GpuBusy | None) -> Row:
    return {
        **_host_key(name),
        "status": "ok",
        **gpu_columns(sampling.state_before, sampling.state_after, sampling.power, sampling.slowdowns()),
        **step_columns(busy, sampling.power),
        "samples_ms": sampling.timings[name].host_ms,
    }


def _capture(
    profiler: str, why: str, cell: Cell, settings: Settings, passes: list[str], device: torch.device, folder: Path
) -> tuple[Trace, str]:
    if profiler == "torch":
        return _capture_with_torch(cell, settings, passes, device, folder), why
    try:
        return _capture_with_nsys(cell, settings, passes, folder), why
    except nsys.CaptureFailed as failed:
        if cell.profiler == "nsys":
            raise Skipped(str(failed)) from None
        return _capture_with_torch(cell, settings, passes, device, folder), str(failed)


def _capture_with_nsys(cell: Cell, settings: Settings, passes: list[str], folder: Path) -> Trace:
    report, database = folder / "capture.nsys-rep", folder / "capture.sqlite"
    nsys.capture(workload.command(cell, settings, passes), report)
    try:
        nsys.export(report, database)
        trace = read_export(database)
    finally:
        database.unlink(missing_ok=True)  # ten times as large as the report, from which it can be exported again
    write_perfetto(trace, folder / "perfetto.json.gz")
    return trace


def _capture_with_torch(cell: Cell, settings: Settings, passes: list[str], device: torch.device, folder: Path) -> Trace:
    step = workload.build(cell, settings, device)
    workload.warm_up(step, passes, settings.warmup_steps)
    return torch_profiler.capture(
        lambda: workload.run_in_ranges(step, passes, settings.captured_rounds), device, folder / "perfetto.json.gz"
    )
