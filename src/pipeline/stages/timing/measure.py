"""Measure a timing cell: phases one by one between synchronised moments, then whole steps undivided."""

from typing import Any

import torch

from pipeline.errors import Skipped
from pipeline.formulas import flops
from pipeline.formulas.sizes import SIZES
from pipeline.instruments.machine.peaks import peak_tflops
from pipeline.instruments.machine.toolchain import require_compiler
from pipeline.instruments.sampling.stability import gpu_columns, status_columns
from pipeline.instruments.sampling.step_timing import Sampling, StopRule, time_call_ms, time_phases
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.summary import quartiles, summarise
from pipeline.model.step import TrainingStep, build_training_step
from pipeline.stages.timing.cell import FIRST_STEP, Cell, Settings

Row = dict[str, Any]


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch) -> list[Row]:
    """Return a row for each phase and clock; raises Skipped where this machine cannot make the cell."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    _require(cell, device)
    step = build_training_step(
        SIZES[cell.size],
        vocab_size=settings.vocab_size,
        context_length=cell.context_length,
        batch_size=settings.batch_size,
        precision=cell.precision,
        device=device,
        compiled=cell.mode == "compiled",
    )
    rows = [_compile_row(step, device, stopwatch)] if cell.mode == "compiled" else []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    rule = StopRule(settings.steps, settings.max_steps, settings.rel_error, settings.budget_s)
    with stopwatch.measuring():
        phases = {"forward": step.forward, "backward": step.backward, "optimizer": step.optimizer_step}
        samplings = [
            time_phases(phases, device, cell.warmup_steps, rule),
            # Once more without the synchronisation between phases, which a real training step does not have. The steps
            # before have warmed it up.
            time_phases({"train_step": step.run}, device, 0, rule),
        ]
    shared = _shared_columns(cell, settings, device)
    return rows + [row for sampling in samplings for row in _rows(sampling, cell, settings, shared)]


def _require(cell: Cell, device: torch.device) -> None:
    if cell.precision == "tf32" and (device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0)):
        raise Skipped("tf32 needs a GPU with TF32 tensor cores")
    if cell.mode == "compiled":
        require_compiler()


def _compile_row(step: TrainingStep, device: torch.device, stopwatch: Stopwatch) -> Row:
    """Time the first step, which compiles; from nothing, for a filled cache would hide what it takes."""
    torch.compiler.config.force_disable_caches = True
    with stopwatch.measuring():
        samples_ms = [time_call_ms(step.run, device)]
    return {"phase": FIRST_STEP, "clock": "host", "status": "ok", **summarise(samples_ms), "samples_ms": samples_ms}


def _shared_columns(cell: Cell, settings: Settings, device: torch.device) -> Row:
    peak = peak_tflops(device, cell.precision)
    on_gpu = device.type == "cuda"
    return {
        "peak_tflops_per_s": peak.tflops,
        "peak_source": peak.source,
        "peak_bytes": torch.cuda.max_memory_allocated(device) if on_gpu else None,
        "tokens": settings.batch_size * cell.context_length,
    }


def _rows(sampling: Sampling, cell: Cell, settings: Settings, shared: Row) -> list[Row]:
    return [
        {
            "phase": name,
            "clock": clock,
            **status_columns(samples_ms, sampling.slowdowns(), settings.unstable_rel_error),
            **summarise(samples_ms),
            **_rates(name, samples_ms, cell, settings, shared),
            **shared,
            **gpu_columns(sampling.state_before, sampling.state_after),
            "samples_ms": samples_ms,
        }
        for name, timings in sampling.timings.items()
        for clock, samples_ms in timings.by_clock().items()
    ]


def _rates(name: str, samples_ms: list[float], cell: Cell, settings: Settings, shared: Row) -> Row:
    """Return tokens/s, model TFLOP/s and MFU; the optimizer moves bytes and has none of them."""
    flops_of = {
        "forward": flops.forward_flops,
        "backward": flops.backward_flops,
        "train_step": flops.train_step_flops,
    }
    if name not in flops_of:
        return {}
    median_s = quartiles(samples_ms)[1] / 1e3
    step_flops = flops_of[name](SIZES[cell.size], settings.vocab_size, settings.batch_size, cell.context_length)
    tflops_per_s = step_flops / median_s / 1e12
    return {
        "tokens_per_s": shared["tokens"] / median_s,
        "model_tflops_per_s": tflops_per_s,
        "mfu_pct": 100 * tflops_per_s / shared["peak_tflops_per_s"],
    }
