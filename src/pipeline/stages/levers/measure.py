"""Measure a levers cell: build each combination, check its first losses against the eager model's, time its steps."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.attention.functions import why_not
from pipeline.errors import Skipped
from pipeline.formulas.sizes import SIZES
from pipeline.instruments.machine.peaks import peak_to_measure
from pipeline.instruments.machine.pinning import pinned
from pipeline.instruments.machine.power import LEAST_ENERGY_S
from pipeline.instruments.machine.toolchain import require_compiler
from pipeline.instruments.profilers.gpu_busy import profile_gpu_busy, step_columns
from pipeline.instruments.sampling.cuda_graph import WARMUP_CALLS, captured, make_capturable, require_graphs
from pipeline.instruments.sampling.gpu_readings import gpu_columns
from pipeline.instruments.sampling.step_timing import StopRule, time_call_ms, time_phases
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.model.float8 import convert_blocks, require_float8
from pipeline.model.optimizers import Bf16MomentsAdamW, muon
from pipeline.model.step import TrainingStep, build_training_step
from pipeline.parallel.processes.starting import RankContext, run_ranks
from pipeline.stages.levers.cell import CHECKPOINTED, EAGER, EAGER_AGAIN, Cell, Settings, names
from pipeline.ways.ranks import ENDS, outcome

Row = dict[str, Any]
# The losses of the first step and of the last checked step.
Losses = tuple[float, float]
# Their updates differ from AdamW's in fp32, so the loss after some steps differs too.
OTHER_UPDATES = {"bf16_weights", "muon"}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
RECIPES = {"fp8": "tensorwise", "fp8_rowwise": "rowwise"}
# Long enough to measure energy to 2%.
ENERGY_S = 2 * LEAST_ENERGY_S


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch) -> list[Row]:
    """Return a row for each combination; one that is out of memory, or lacks something here, loses only its own row.

    Each runs in its own process, because compiled code, a graph's memory and an attached profiler would stay behind.
    Losses are compared with the eager step's; if that is out of memory, with those of the step with checkpoints, which
    computes the same. Without either, nothing can be checked. Any other error of these two steps passes through.
    """
    with stopwatch.measuring():
        found = _references(cell, settings)
        *_, reference = found.values()
        if reference is not found[EAGER]:
            found[EAGER_AGAIN] = {"status": "skipped", "reason": "out of memory the first time"}
        rows = [found.get(levers) or _row(levers, cell, settings, reference) for levers in cell.turns]
    return [{"levers": levers, **row} for levers, row in zip(cell.turns, rows, strict=True)]


def _references(cell: Cell, settings: Settings) -> dict[str, Row]:
    """Return the row of the eager step; if it is out of memory, also that of the step with checkpoints, as the last."""
    found: dict[str, Row] = {}
    for levers in (EAGER, CHECKPOINTED):
        try:
            return found | {levers: _in_a_process(levers, cell, settings)}
        except (RuntimeError, MemoryError) as error:
            found[levers] = outcome(error)
    return found


def _row(levers: str, cell: Cell, settings: Settings, reference: Row) -> Row:
    if reference["status"] == "oom":
        return {"status": "skipped", "reason": "not even the step with checkpoints fits: its loss cannot be checked"}
    losses = _number(reference["first_loss"]), _number(reference["loss"])
    try:
        return _in_a_process(levers, cell, settings, losses)
    except ENDS as end:
        return outcome(end)


def _in_a_process(levers: str, cell: Cell, settings: Settings, eager: Losses | None = None) -> Row:
    return run_ranks(
        measure_turn,
        1,
        backend="gloo",
        device_type="cuda" if torch.cuda.is_available() else "cpu",
        timeout_s=settings.timeout_s,
        args=(levers, cell, settings, eager),
    )[0]


def measure_turn(context: RankContext, levers: str, cell: Cell, settings: Settings, eager: Losses | None) -> Row:
    """Check and time one combination; eager: the losses to compare with, None for the step that provides them.

    Raises Skipped if this machine lacks what a lever needs.
    """
    device = context.device
    _require(levers, device)
    step = _build(levers, cell, settings, device)
    losses: list[Tensor] = []
    first_step_ms = time_call_ms(lambda: losses.append(step.run()), device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    # Pinned only after the first step, which compiles and uses more than one core.
    with pinned(device) as core, _run(step, levers, device) as (run, steps_done):
        found = float(losses[0]), _loss_after(run, settings.checked_steps - 1 - steps_done)
        checked = dict(zip(("first_loss", "loss"), map(_finite, found), strict=True))
        wrong = _why_wrong(found, eager or found, levers, settings)
        if wrong:
            return {"status": "wrong", "reason": wrong, **checked}
        columns = _timed_columns(run, cell, settings, device)
    return {**columns, **checked, "first_step_ms": first_step_ms, "pinned_core": core}


def _require(levers: str, device: torch.device) -> None:
    asked = names(levers)
    if "compile" in asked:
        require_compiler()
    if "graph" in asked:
        require_graphs(device)
    if "flash" in asked and (lack := why_not("flash", device)):
        raise Skipped(lack)
    for recipe in _recipes(asked):
        require_float8(recipe, device)


def _build(levers: str, cell: Cell, settings: Settings, device: torch.device) -> TrainingStep:
    asked = names(levers)
    attention = next((name for name in ("flash", "sdpa") if name in asked), "eager")
    conversions = [partial(convert_blocks, recipe=recipe) for recipe in _recipes(asked)]
    step = build_training_step(
        SIZES[cell.size],
        vocab_size=settings.vocab_size,
        context_length=cell.context_length,
        batch_size=settings.batch_size,
        precision=cell.precision,
        device=device,
        compiled="compile" in asked,
        fused_optimizer="fused" in asked,
        attention=attention,
        checkpoint_every=1 if "checkpointing" in asked else 0,
        weights_dtype=torch.bfloat16 if "bf16_weights" in asked else torch.float32,
        convert=next(iter(conversions), None),
        make_optimizer=_optimizer(asked),
    )
    if "blocks" in asked:
        from pipeline.model.fused.step import fused_step

        step = fused_step(step, attention, DTYPES[cell.precision])
    for group in step.optimizer.param_groups:
        group["lr"] = settings.learning_rate
    return step


def _recipes(asked: Sequence[str]) -> list[str]:
    return [recipe for name, recipe in RECIPES.items() if name in asked]


def _optimizer(asked: Sequence[str]) -> Callable[[nn.Module], torch.optim.Optimizer] | None:
    if "muon" in asked:
        return partial(muon, fused="fused" in asked)
    return (lambda model: Bf16MomentsAdamW(model.parameters())) if "bf16_moments" in asked else None


def _loss_after(run: Callable[[], Tensor], steps: int) -> float:
    for _ in range(steps):
        loss = run()
    return float(loss)


@contextmanager
def _run(step: TrainingStep, levers: str, device: torch.device) -> Iterator[tuple[Callable[[], Tensor], int]]:
    """Yield a function that runs a step, and how many steps its preparation ran."""
    if "graph" not in names(levers):
        yield step.run, 0
        return
    make_capturable(step.optimizer)
    batch = step.tokens.clone(), step.targets.clone()
    with captured(step.run, device, (step.tokens, step.targets), step.discard) as replay:
        yield partial(replay, *batch), WARMUP_CALLS


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def _number(loss: float | None) -> float:
    return math.nan if loss is None else loss


def _why_wrong(losses: Losses, eager: Losses, levers: str, settings: Settings) -> str:
    """Say how the first or the last loss differs from the eager one by more than allowed; empty if neither does.

    With OTHER_UPDATES only the first loss is checked, because the last shows how they differ: weights in bf16 round
    small updates away. Muon must lower the loss.
    """
    steps = (1,) if OTHER_UPDATES & {*names(levers)} else (1, settings.checked_steps)
    allowed = settings.first_loss_tolerance * eager[0], settings.loss_tolerance * abs(eager[0] - eager[1])
    for number, loss, other, most in zip(steps, losses, eager, allowed, strict=False):
        if not abs(loss - other) <= most:  # so that NaN is wrong too
            return f"loss {loss:.5g} in step {number}, {other:.5g} of the eager model"
    if "muon" in names(levers) and not losses[1] < losses[0]:
        return f"loss {losses[1]:.5g} in step {settings.checked_steps}, {losses[0]:.5g} in the first"
    return ""


def _timed_columns(run: Callable[[], Tensor], cell: Cell, settings: Settings, device: torch.device) -> Row:
    """Time whole steps, warmed up by the checked ones, and their energy; then profile how busy the GPU is."""
    sampling = time_phases({"step": run}, device, 0, _rule(settings, device))
    peak_bytes = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    busy = profile_gpu_busy(run, device)
    return {
        "status": "ok",
        **step_columns(busy, sampling.power),
        **gpu_columns(sampling.state_before, sampling.state_after, sampling.power, sampling.slowdowns()),
        "measured_peak_tflops_per_s": peak_to_measure(device, cell.precision),
        "peak_bytes": peak_bytes,
        "samples_ms": sampling.timings["step"].host_ms,
    }


def _rule(settings: Settings, device: torch.device) -> StopRule:
    """Return the stop rule; on a GPU it takes enough steps to read their energy, if that many are allowed."""
    least_s = ENERGY_S if device.type == "cuda" else 0.0
    return StopRule(settings.steps, settings.max_steps, settings.rel_error, settings.budget_s, least_s)
