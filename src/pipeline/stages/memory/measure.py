"""Measure a memory cell: record how a model is built and takes two steps, replay that, then time a few more steps."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pipeline.attention.functions import why_not
from pipeline.errors import Skipped
from pipeline.instruments.memory.recording import Recorder, record_memory
from pipeline.instruments.memory.saved_tensors import saved_by_operation
from pipeline.instruments.sampling.step_timing import StopRule, time_phases
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.model.checkpointing import SELECTABLE_ATTENTIONS
from pipeline.model.precision import precision_context
from pipeline.model.step import TrainingStep, build_training_step
from pipeline.stages.memory.cell import Cell, Settings
from pipeline.stages.memory.recorded_rows import recording_rows

Row = dict[str, Any]

# AdamW creates its moments at the end of the first step, so only the second one is like all later steps.
RECORDED_STEPS = 2


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch, files_dir: Path) -> list[Row]:
    """Return the rows of one recording; raises Skipped if this machine or model cannot run the cell.

    Writes snapshot.pickle, which opens in pytorch.org/memory_viz, to `files_dir`, even if memory runs out.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    _require(cell, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with stopwatch.measuring(), record_memory(device, files_dir / "snapshot.pickle") as recorder:
        step = _record_steps(recorder, cell, settings, device)
    # Read before steps are timed: they would count in the allocator's peaks.
    allocator = _allocator_rows(device)
    rows = [*recording_rows(recorder.read()), *allocator]
    if cell.mode == "train_step":
        with stopwatch.measuring():
            rows.append(_time_row(step, settings, device))
            if not cell.checkpoint_every:
                rows += block_rows(step, cell.model_size.d_model)
    return [{**row, "device_type": device.type} for row in rows]


def _require(cell: Cell, device: torch.device) -> None:
    if lack := why_not(cell.attention, device):
        raise Skipped(lack)
    if cell.checkpoint_every > cell.model_size.num_layers:
        raise Skipped(f"{cell.size} has fewer than {cell.checkpoint_every} blocks")
    if cell.checkpointing != "segments" and not cell.checkpoint_every:
        raise Skipped(f"{cell.checkpointing} checkpointing needs a checkpoint_every of at least 1")
    if cell.checkpointing == "selective" and cell.attention not in SELECTABLE_ATTENTIONS:
        raise Skipped(f"selective checkpointing needs attention that is one operator, {cell.attention} is several")


def _record_steps(recorder: Recorder, cell: Cell, settings: Settings, device: torch.device) -> TrainingStep:
    recorder.phase("build")
    step = build_training_step(
        cell.model_size,
        vocab_size=settings.vocab_size,
        context_length=cell.context_length,
        batch_size=settings.batch_size,
        precision=cell.precision,
        device=device,
        attention=cell.attention,
        checkpoint_every=cell.checkpoint_every,
        checkpointing=cell.checkpointing,
    )
    recorder.identify("parameters", step.model.parameters())
    for _ in range(RECORDED_STEPS):
        if cell.mode == "train_step":
            _record_training_step(recorder, step)
        else:
            recorder.phase("forward")
            with torch.set_grad_enabled(cell.mode == "forward"):
                step.forward()
    recorder.phase("end")
    return step


def _record_training_step(recorder: Recorder, step: TrainingStep) -> None:
    recorder.phase("forward")
    step.forward()
    recorder.phase("backward")
    step.backward()
    gradients = (parameter.grad for parameter in step.model.parameters())
    recorder.identify("gradients", (gradient for gradient in gradients if gradient is not None))
    recorder.phase("optimizer")
    step.optimizer_step()
    recorder.identify("optimizer_state", _optimizer_state(step))


def _optimizer_state(step: TrainingStep) -> Iterator[torch.Tensor]:
    """Yield the optimizer state on the model's device: with a GPU, AdamW's step counters stay on the host."""
    for state in step.optimizer.state.values():
        yield from (tensor for tensor in state.values() if tensor.device == step.tokens.device)


def _allocator_rows(device: torch.device) -> list[Row]:
    """Return the allocator's own peaks: bytes requested, allocated in whole blocks, and reserved from the device."""
    if device.type != "cuda":
        return []
    stats = torch.cuda.memory_stats(device)
    return [
        {
            "kind": "allocator",
            "status": "ok",
            "requested_peak_bytes": stats["requested_bytes.all.peak"],
            "allocated_peak_bytes": stats["allocated_bytes.all.peak"],
            "reserved_peak_bytes": stats["reserved_bytes.all.peak"],
            "device_bytes": torch.cuda.get_device_properties(device).total_memory,
        }
    ]


def _time_row(step: TrainingStep, settings: Settings, device: torch.device) -> Row:
    """Time whole steps without recording."""
    rule = StopRule(settings.steps, settings.max_steps, settings.rel_error, settings.budget_s)
    sampling = time_phases({"train_step": step.run}, device, settings.warmup_steps, rule)
    samples_ms = sampling.timings["train_step"].host_ms
    return {"kind": "time", "status": "ok", "slowdowns": sampling.slowdowns(), "samples_ms": samples_ms}


def block_rows(step: TrainingStep, d_model: int) -> list[Row]:
    """Run the first block alone, forward and backward; return a row of totals and one per saved tensor, largest first.

    Drops the model's gradients before and after.
    """
    step.discard()
    block = step.model.get_submodule("layers.0")
    x = torch.randn(*step.tokens.shape, d_model, device=step.tokens.device, requires_grad=True)
    with precision_context(step.precision, x.device.type):
        output, saved = saved_by_operation(block, x)
    output.backward(torch.ones_like(output))
    gradients_bytes = sum(parameter.grad.nbytes for parameter in block.parameters() if parameter.grad is not None)
    step.discard()
    whole = {
        "saved_bytes": sum(tensor.size_bytes for tensor in saved),
        "gradients_bytes": gradients_bytes,
        "input_gradient_bytes": x.nbytes,
    }
    by_size = sorted(saved, key=lambda tensor: tensor.size_bytes, reverse=True)
    parts = [asdict(tensor) | {"shape": list(tensor.shape)} for tensor in by_size]
    ranked = [{"kind": "block_saved", "status": "ok", "rank": rank, **part} for rank, part in enumerate(parts, start=1)]
    return [{"kind": "block", "status": "ok", **whole}, *ranked]
