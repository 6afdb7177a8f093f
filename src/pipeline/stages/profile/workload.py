"""Run the captured passes, each as a range of its name, round by round. nsys runs this module as a program:

python -m pipeline.stages.profile.workload PASS[,PASS...] AXIS=VALUE... SETTING=VALUE...
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields as declared
from typing import Any

import torch

from pipeline.cells import fields
from pipeline.formulas.sizes import SIZES
from pipeline.instruments.profilers.module_ranges import ForwardRanges, module_ranges
from pipeline.instruments.sampling.step_timing import synchronize
from pipeline.model.precision import precision_context
from pipeline.model.step import TrainingStep, build_training_step
from pipeline.ranges import listener, listening, span
from pipeline.stages.profile.cell import BACKWARD_BY_PART, BACKWARD_OF, Cell, Settings

Calls = dict[str, Callable[[], Any]]

# The range around the first round of a capture.
UNCOUNTED = "uncounted_round"


def build(cell: Cell, settings: Settings, device: torch.device) -> TrainingStep:
    """Build the model, its optimizer and a batch on the device."""
    return build_training_step(
        SIZES[cell.size],
        vocab_size=settings.vocab_size,
        context_length=cell.context_length,
        batch_size=settings.batch_size,
        precision=cell.precision,
        device=device,
    )


def calls(step: TrainingStep) -> Calls:
    """Return a function for each pass, by its name in `PASSES`."""

    def inference() -> None:
        with torch.no_grad(), precision_context(step.precision, step.tokens.device.type):
            step.model(step.tokens)

    def forward_backward() -> None:
        step.forward()
        step.backward()

    return {"inference": inference, "forward_backward": forward_backward, "train_step": step.run}


def drop_gradients(step: TrainingStep) -> None:
    """Drop the gradients, as a training step does, so that the next backward pass allocates new ones."""
    step.optimizer.zero_grad(set_to_none=True)


def warm_up(step: TrainingStep, passes: Sequence[str], rounds: int) -> None:
    """Run the passes without ranges."""
    runs = calls(step)
    for _ in range(rounds):
        for name in passes:
            runs[name]()
            drop_gradients(step)


def run_in_ranges(step: TrainingStep, passes: Sequence[str], rounds: int) -> None:
    """Run the passes in ranges, with a synchronize before and after each, for whichever profiler listens.

    An additional first round is wrapped in a range of its own, so that its passes do not count: the profiler's start-up
    can double its time.
    """
    # Without threads of its own, autograd launches kernels in the caller's thread, inside the open range.
    with torch.autograd.set_multithreading_enabled(False), module_ranges(step.model):
        with span(UNCOUNTED):
            _run_round(step, passes)
        for _ in range(rounds):
            _run_round(step, passes)
        if BACKWARD_OF in passes:
            _run_backward_by_part(step)


def _run_round(step: TrainingStep, passes: Sequence[str]) -> None:
    device, runs = step.tokens.device, calls(step)
    for name in passes:
        synchronize(device)
        with span(name):
            runs[name]()
            synchronize(device)
        drop_gradients(step)


def _run_backward_by_part(step: TrainingStep) -> None:
    """Run one backward pass with ranges for its parts; it is not timed, because the hooks that open them take time."""
    profiler = listener()
    if profiler is None:
        raise RuntimeError("ranges of the backward pass need a listening profiler")
    with span(BACKWARD_BY_PART):
        with listening(forward_ranges := ForwardRanges(profiler)):
            loss = step.forward()
        forward_ranges.mark_backward(loss)
        step.backward()
        synchronize(step.tokens.device)
    drop_gradients(step)


def command(cell: Cell, settings: Settings, passes: Sequence[str]) -> list[str]:
    """Return the command that runs this module as a program."""
    return [sys.executable, "-m", __name__, ",".join(passes), *fields.words(cell), *fields.words(settings)]


def main(arguments: Sequence[str]) -> None:
    """Run as the program that nsys captures: warm up, then record."""
    passes, *given = arguments
    axes = len(declared(Cell))  # their words come first
    cell = fields.parse_words(Cell, given[:axes], "profile cell")
    settings = fields.parse_words(Settings, given[axes:], "profile settings")
    step = build(cell, settings, torch.device("cuda"))
    warm_up(step, passes.split(","), settings.warmup_steps)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    with listening(torch.cuda.nvtx.range):
        run_in_ranges(step, passes.split(","), settings.captured_rounds)
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
