"""Language models of the user's own in a timing cell: each checked, then timed after ours, in processes of its own."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from pipeline.formulas.sizes import SIZES
from pipeline.instruments.memory.freed_memory import make_room
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.model.step import step_of
from pipeline.parallel.processes.starting import RankContext
from pipeline.stages.timing.cell import Cell, Settings
from pipeline.subjects.measuring import measure_in_turns
from pipeline.subjects.model_check import build_model, check_model
from pipeline.subjects.naming import Subject
from pipeline.subjects.turns import Turns

Row = dict[str, Any]
MeasureStep = Callable[..., list[Row]]


def measure_models(
    subjects: Sequence[Subject], cell: Cell, settings: Settings, device: torch.device, measure_step: MeasureStep
) -> list[Row]:
    """Return the rows of the user's own models, each by itself, measured as ours is; one that fails costs its own."""
    make_room(device)  # ours is done
    keys, given = cell.row_keys(settings.compiled), (cell, settings, measure_step)
    return [row for each in subjects for row in measure_in_turns([each], (check_model,), _timed, given, settings, keys)]


def _timed(
    context: RankContext,
    own: Collection[Subject],
    turns: Turns,
    cell: Cell,
    settings: Settings,
    measure_step: MeasureStep,
) -> list[Row]:
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
