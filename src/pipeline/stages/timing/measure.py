"""Measure a timing cell: phases with a synchronize between them, then whole steps; first eager, then compiled."""

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pipeline.errors import Skipped
from pipeline.formulas.sizes import SIZES
from pipeline.instruments.machine.peaks import peak_to_measure
from pipeline.instruments.machine.pinning import pinned
from pipeline.instruments.machine.power import LEAST_ENERGY_S
from pipeline.instruments.machine.toolchain import require_compiler
from pipeline.instruments.memory.freed_memory import make_room
from pipeline.instruments.memory.out_of_memory import is_out_of_memory
from pipeline.instruments.profilers.gpu_busy import GpuBusy, profile_gpu_busy, step_columns
from pipeline.instruments.sampling.gpu_readings import gpu_columns
from pipeline.instruments.sampling.step_timing import Sampling, StopRule, time_call_ms, time_phases
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.model.step import TrainingStep, build_training_step, step_of
from pipeline.model.transformer import TransformerLM
from pipeline.stages.timing.cell import COMPILED, EAGER, FIRST_STEP, Cell, Settings, mode_keys

if TYPE_CHECKING:
    from pipeline.parallel.processes.starting import RankContext
    from pipeline.subjects.naming import Subject
    from pipeline.subjects.turns import Turns

Row = dict[str, Any]
# With force_eager a compiled model runs as it is written.
STANCES = {EAGER: "force_eager", COMPILED: "default"}


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch, subjects: Sequence["Subject"] = ()) -> list[Row]:
    """Return a row for each mode, phase and clock; raises Skipped if this machine cannot run the cell.

    The user's models are measured after ours.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if cell.precision == "tf32" and (device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0)):
        raise Skipped("tf32 needs a GPU with TF32 tensor cores")
    step = build_training_step(
        SIZES[cell.size],
        vocab_size=settings.vocab_size,
        context_length=cell.context_length,
        batch_size=cell.batch_size,
        precision=cell.precision,
        device=device,
    )
    rows = measure_step(step, cell, settings, device, stopwatch)
    del step
    if subjects:
        from pipeline.subjects.measuring import measure_in_turns
        from pipeline.subjects.model_check import check_model

        make_room(device)
        given, keys = (cell, settings), cell.row_keys(settings)
        with stopwatch.measuring():
            for each in subjects:  # each in its own process
                rows += measure_in_turns([each], (check_model,), _measure_own, given, settings, keys)
    return rows


def _measure_own(
    context: "RankContext", own: Collection["Subject"], turns: "Turns", cell: Cell, settings: Settings
) -> list[Row]:
    from pipeline.subjects.model_check import build_model

    size, rows = SIZES[cell.size], list[Row]()
    for subject in own:
        torch.manual_seed(0)
        with turns.of(subject.name), context.device:
            model = build_model(subject, size, settings.vocab_size, cell.context_length)
        step = step_of(
            model,
            vocab_size=size.vocabulary(settings.vocab_size),
            context_length=cell.context_length,
            batch_size=cell.batch_size,
            precision=cell.precision,
            device=context.device,
        )
        with turns.of(subject.name):
            found = measure_step(step, cell, settings, context.device, Stopwatch())
        rows += [{"impl": subject.name, **row} for row in found]
    return rows


def measure_step(
    step: TrainingStep, cell: Cell, settings: Settings, device: torch.device, stopwatch: Stopwatch
) -> list[Row]:
    """Return a row for each mode, phase and clock of a model's training step.

    Profiles come last: the profiler stays attached and slows launches down.
    """
    time_mode = partial(_time, step, cell, settings, device, stopwatch)
    taken, found = {EAGER: time_mode()}, list[Row]()
    if COMPILED in cell.modes(settings):
        found = _compile(step, device, stopwatch)
        if all(row["status"] == "ok" for row in found):
            taken[COMPILED] = time_mode()
    peak = {"measured_peak_tflops_per_s": peak_to_measure(device, cell.precision)}
    rows = []
    for mode, (samplings, columns) in taken.items():
        with torch.compiler.set_stance(STANCES[mode]), stopwatch.measuring():
            busy = profile_gpu_busy(step.run, device)
        shared = {"mode": mode, "status": "ok", **peak, **columns}
        rows += [shared | row for sampling in samplings for row in _rows(sampling, busy)]
    return rows + found


def _time(
    step: TrainingStep, cell: Cell, settings: Settings, device: torch.device, stopwatch: Stopwatch
) -> tuple[list[Sampling], Row]:
    """Time a step phase by phase, then whole; return also the columns that its rows share."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    # A step's energy is read over at least this many seconds of steps.
    least_s = LEAST_ENERGY_S if on_gpu else 0.0
    rule = StopRule(settings.steps, settings.max_steps, settings.rel_error, settings.budget_s, least_s)
    phases = {"forward": step.forward, "backward": step.backward, "optimizer": step.optimizer_step}
    # Pinned only here: compiling takes more than one core.
    with stopwatch.measuring(), pinned(device) as core:
        samplings = [
            time_phases(phases, device, cell.warmup_steps, rule),
            # Once more without the synchronize between phases, as a real training step has none. The steps before have
            # warmed it up.
            time_phases({"train_step": step.run}, device, 0, rule),
        ]
    peak_bytes = torch.cuda.max_memory_allocated(device) if on_gpu else None
    return samplings, {"peak_bytes": peak_bytes, "pinned_core": core}


def _compile(step: TrainingStep, device: torch.device, stopwatch: Stopwatch) -> list[Row]:
    """Compile the model and time its first step; return its row, or if that fails, all phases' rows with the reason."""
    try:
        require_compiler()
        # From scratch: a filled cache would hide the time to compile.
        torch.compiler.config.force_disable_caches = True
        _compile_model(step.model)
        with stopwatch.measuring():
            samples_ms = [time_call_ms(step.run, device)]
    except Skipped as skipped:
        outcome = {"status": "skipped", "reason": str(skipped)}
    except torch.AcceleratorError:  # nothing can run on the GPU afterwards
        raise
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        outcome = {
            "status": "oom" if is_out_of_memory(error) else "failed",
            "reason": f"{type(error).__name__}: {said}",
        }
    else:
        first = {"mode": COMPILED, "phase": FIRST_STEP, "clock": "host"}
        return [{**first, "status": "ok", "samples_ms": samples_ms}]
    step.discard()
    return [key | outcome for key in mode_keys(COMPILED)]


def _compile_model(model: nn.Module) -> None:
    """Compile our model block by block, so that blocks share one compilation; other models as a whole."""
    for module in model.layers if isinstance(model, TransformerLM) else [model]:
        module.compile()


def _rows(sampling: Sampling, busy: GpuBusy | None) -> list[Row]:
    return [
        {
            "phase": name,
            "clock": clock,
            **gpu_columns(sampling.state_before, sampling.state_after, sampling.power, sampling.slowdowns()),
            **(step_columns(busy, sampling.power) if (name, clock) == ("train_step", "host") else {}),
            "samples_ms": samples_ms,
        }
        for name, timings in sampling.timings.items()
        for clock, samples_ms in timings.by_clock().items()
    ]
