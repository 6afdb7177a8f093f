"""Measure a profile cell: time the passes by the host clock without a profiler, then capture them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeline.errors import Skipped
from pipeline.instruments.machine.pinning import pinned
from pipeline.instruments.memory.out_of_memory import attempt, free_memory
from pipeline.instruments.profilers import nsys, torch_profiler
from pipeline.instruments.profilers.gpu_busy import profile_gpu_busy, step_columns
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
PERFETTO = "perfetto.json.gz"


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch, files_dir: Path) -> list[Row]:
    """Return rows of times, categories, kernels, attention's phases and one layer; keep the capture in `files_dir`.

    A pass that runs out of memory becomes a row of status oom and is left out of the capture. Raises Skipped if the
    requested profiler does not work here.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    obstacle = "nsys captures need a CUDA GPU" if device.type != "cuda" or torch.version.hip else nsys.obstacle()
    if cell.profiler == "nsys" and obstacle:
        raise Skipped(obstacle)
    with stopwatch.measuring():
        host = _host_clock(cell, settings, device)
    passes = [row["range"] for row in host if row["status"] != "oom"]
    if not passes:
        return host
    with stopwatch.measuring():
        trace, why = _capture(obstacle, cell, settings, passes, device, files_dir)
    kernel_table(trace, passes).to_csv(files_dir / "kernels.csv", index=False)
    captured = {"captured_by": trace.profiler} | ({"not_by_nsys": why} if why else {})
    return [{**row, **captured} for row in host + rows_of(trace, passes, settings.top_kernels)]


def _host_clock(cell: Cell, settings: Settings, device: torch.device) -> list[Row]:
    """Time each pass by the host clock, smallest first; if one runs out of memory, it and all larger ones are oom."""
    step = workload.build(cell, settings, device)
    samplings: dict[str, Sampling] = {}
    reason: str | None = None
    with pinned(device) as core:
        for name in PASSES:
            sampling, reason = attempt(_sample, step, name, settings)
            if sampling is None:
                workload.drop_gradients(step)
                break
            samplings[name] = sampling
        # After all timed passes, because the profiler stays attached.
        busy = {name: profile_gpu_busy(partial(_run_pass, step, name), device) for name in samplings}
    del step
    free_memory()  # the capture builds the model again, for nsys in another process
    keys = {name: {"kind": "time", "range": name, "clock": "host"} for name in PASSES}
    rows = [
        {
            **keys[name],
            "status": "ok",
            "pinned_core": core,
            **gpu_columns(sampling.state_before, sampling.state_after, sampling.power, sampling.slowdowns()),
            **step_columns(busy[name], sampling.power),
            "samples_ms": sampling.timings[name].host_ms,
        }
        for name, sampling in samplings.items()
    ]
    return rows + [{**keys[name], "status": "oom", "reason": reason} for name in PASSES[len(rows) :]]


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


def _capture(
    obstacle: str, cell: Cell, settings: Settings, passes: list[str], device: torch.device, folder: Path
) -> tuple[Trace, str]:
    """Capture the passes with nsys if requested and possible, else with torch; also return why nsys was not used."""
    why = "" if cell.profiler == "torch" else obstacle
    if cell.profiler != "torch" and not why:
        try:
            return _capture_with_nsys(cell, settings, passes, folder), ""
        except nsys.CaptureFailed as failed:
            why = str(failed)
            if cell.profiler == "nsys":
                raise Skipped(why) from None
    step = workload.build(cell, settings, device)
    workload.warm_up(step, passes, settings.warmup_steps)
    run = partial(workload.run_in_ranges, step, passes, settings.captured_rounds)
    return torch_profiler.capture(run, device, folder / PERFETTO), why


def _capture_with_nsys(cell: Cell, settings: Settings, passes: list[str], folder: Path) -> Trace:
    report, database = folder / "capture.nsys-rep", folder / "capture.sqlite"
    nsys.capture(workload.command(cell, settings, passes), report)
    try:
        nsys.export(report, database)
        trace = read_export(database)
    finally:
        database.unlink(missing_ok=True)  # ten times as large as the report, from which it can be exported again
    write_perfetto(trace, folder / PERFETTO)
    return trace
