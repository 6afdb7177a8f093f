"""Language models of the user's own in a timing cell: each checked, then timed after ours, in processes of its own."""

from collections.abc import Sequence
from pathlib import Path

import torch

from pipeline.formulas.sizes import SIZES
from pipeline.instruments.memory.freed_memory import make_room
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.model.step import step_of
from pipeline.parallel.processes.starting import RankContext
from pipeline.stages.timing.cell import Cell, Settings
from pipeline.stages.timing.measure import Row, measure_step
from pipeline.subjects.checking import Processes, measure_survivors, verdict
from pipeline.subjects.model_check import build_model, check_model
from pipeline.subjects.naming import Subject
from pipeline.subjects.turns import Turns


def measure_models(subjects: Sequence[Subject], cell: Cell, settings: Settings, device: torch.device) -> list[Row]:
    """Return the rows of the user's own models; one that fails costs its own rows."""
    make_room(device)  # ours is done
    return [row for subject in subjects for row in _rows_of(subject, cell, settings, device)]


def _rows_of(subject: Subject, cell: Cell, settings: Settings, device: torch.device) -> list[Row]:
    found = verdict(check_model, subject, Processes(1, "gloo", device.type, settings.check_timeout_s))

    def measure(left: Sequence[Subject], mark: Path) -> list[Row]:
        measured = Processes(1, "gloo", device.type, settings.timeout_s)
        return [row for each in left for row in measured.run(_timed, each, cell, settings, mark)]

    if found.status == "ok":
        rows, out = measure_survivors(measure, [subject])
        if subject not in out:
            return rows
        found = out[subject]
    return [{**key, "impl": subject.name, **found.outcome} for key in cell.row_keys()]


def _timed(context: RankContext, subject: Subject, cell: Cell, settings: Settings, mark: Path) -> list[Row]:
    size, turns = SIZES[cell.size], Turns([subject], mark)
    torch.manual_seed(0)
    with turns.of(subject.name), context.device:
        model = build_model(subject, size, settings.vocab_size, cell.context_length)
    if cell.mode == "compiled":
        model.compile()
    step = step_of(
        model,
        vocab_size=size.vocabulary(settings.vocab_size),
        context_length=cell.context_length,
        batch_size=cell.batch_size,
        precision=cell.precision,
        device=context.device,
        fused_optimizer=cell.optimizer == "fused",
    )
    with turns.of(subject.name):
        rows = measure_step(step, cell, settings, context.device, Stopwatch())
    return [{**row, "impl": subject.name} for row in rows]
