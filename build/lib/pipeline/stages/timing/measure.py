"""Measure a timing cell: phases one by one between synchronised moments, then whole steps undivided."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from pipeline.errors import Skipped
from pipeline.formulas.sizes import SIZES
from pipeline.instruments.machine.peaks import peak_to_measure
from pipeline.instruments.machine.pinning import pinned
from pipeline.instruments.machine.power import LEAST_ENERGY_S
from pipeline.instruments.machine.toolchain import require_compiler
from pipeline.instruments.profilers.gpu_busy import GpuBusy, profile_gpu_busy, step_columns
from pipeline.instruments.sampling.gpu_readings import gpu_columns
from pipeline.instruments.sampling.step_timing import Sampling, StopRule, time_call_ms, time_phases
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.model.step import TrainingStep, build_training_step
from pipeline.stages.timing.cell import FIRST_STEP, Cell, Settings

if TYPE_CHECKING:
    from pipeline.subjects.naming import Subject

Row = dict[str, Any]


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch, subjects: Sequence["Subject"] = ()) -> list[Row]:
    """Return a row for each phase and clock; raises Skipped where this machine cannot make the cell.

    Models of the user's own are measured after ours.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    _require(cell, device)
    rows = measure_step(_build_step(cell, settings, device), cell, settings, device, stopwatch)
    if subjects:
        from pipeline.stages.timing.users_own import measure_models

        with stopwatch.measuring():
            rows += measure_models(subjects, cell, settings, device, measure_step)
    return rows


def _build_step(cell: Cell, settings: Settings, device: torch.device) -> TrainingStep:
    return build_training_step(
        SIZES[cell.size],
        vocab_size=settings.vocab_size,
        context_length=cell.context_length,
        batch_size=cell.batch_size,
        precision=cell.precision,
        device=device,
        compiled=cell.mode == "compiled",
    )


def measure_step(
    step: TrainingStep, cell: Cell, settings: Settings, device: torch.device, stopwatch: Stopwatch
) -> list[Row]:
    """Return a row for each phase and clock of a model's training step."""
    rows = [_compile_row(step, device, stopwatch)] if cell.mode == "compiled" else []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    # The energy of a step is read over a second of steps or more.
    least_s = LEAST_ENERGY_S if device.type == "cuda" else 0.0
    rule = StopRule(settings.steps, settings.max_steps, settings.rel_error, settings.budget_s, least_s)
    # After compiling, which takes more than one core.
    with stopwatch.measuring(), pinned(device) as core:
        samplings, busy = _time(step, device, cell.warmup_steps, rule)
    shared = _shared_columns(cell, device) | {"pinned_core": core}
    return rows + [row for sampling in samplings for row in _rows(sampling, busy, shared)]


def _require(cell: Cell, device: torch.device) -> None:
    if cell.precision == "tf32" and (device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0)):
        raise Skipped("tf32 needs a GPU with TF32 tensor cores")
    if cell.mode == "compiled":
        require_compiler()


def _time(
    step: TrainingStep, device: torch.device, warmup_steps: int, rule: StopRule
) -> tuple[list[Sampling], GpuBusy | None]:
    """Time a step phase by phase, then whole, and ask what the GPU did meanwhile."""
    phases = {"forward": step.forward, "backward": step.backward, "optimizer": step.optimizer_step}
    samplings = [
        time_phases(phases, device, warmup_steps, rule),
        # Once more without the synchronisation between phases, which a real training step does not have. The steps
        # before have warmed it up.
        time_phases({"train_step": step.run}, device, 0, rule),
    ]
    return samplings, profile_gpu_busy(step.run, device)


def _compile_row(step: TrainingStep, device: torch.device, stopwatch: Stopwatch) -> Row:
    """Time the first step, which compiles; from nothing, for a filled cache would hide what it takes."""
    torch.compiler.config.force_disable_caches = True
    with stopwatch.measuring():
        samples_ms = [time_call_ms(step.run, device)]
    return {"phase": FIRST_STEP, "clock": "host", "status": "ok", "samples_ms": samples_ms}


def _shared_columns(cell: Cell, device: torch.device) -> Row:
    on_gpu = device.type == "cuda"
    return {
        "measured_peak_tflops_per_s": peak_to_measure(device, cell.precision),
        "peak_bytes": torch.cuda.max_memory_allocated(device) if on_gpu else None,
    }


def _rows(sampling: Sampling, busy: GpuBusy | None, shared: Row) -> list[Row]:
    return [
        {
            "phase": name,
            "clock": clock,
            "status": "ok",
            **shared,
            **gpu_columns(sampling.state_before, sampling.state_after, sampling.power, sampling.slowdowns()),
            **(step_columns(busy, sampling.power) if (name, clock) == ("train_step", "host") else {}),
            "samples_ms": samples_ms,
        }
        for name, timings in sampling.timings.items()
        for clock, samples_ms in timings.by_clock().items()
    ]
