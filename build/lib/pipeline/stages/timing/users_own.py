"""Language models of the user's own in a timing cell: each checked, then timed after ours, in processes of its own."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline.formulas.sizes import SIZES
from pipeline.instruments.memory.freed_memory import make_room
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.model.step import step_of
from pipeline.parallel.processes.starting import RankContext
from pipeline.stages.timing.cell import Cell, Settings
from pipeline.subjects.checking import Processes, Verdict
from pipeline.subjects.measuring import measure_with
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
    checked, measured = (
        Processes(1, "gloo", device.type, limit_s) for limit_s in (settings.check_timeout_s, settings.timeout_s)
    )

    def measure(left: Mapping[Subject, Verdict], mark: Path) -> list[Row]:
        return [row for each in left for row in measured.run(_timed, each, cell, settings, mark, measure_step)]

    keys = cell.row_keys()
    return [row for each in subjects for row in measure_with([each], (check_model,), checked, measure, keys)]


def _timed(
    context: RankContext, subject: Subject, cell: Cell, settings: Settings, mark: Path, measure_step: MeasureStep
) -> list[Row]:
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
    )
    with turns.of(subject.name):
        rows = measure_step(step, cell, settings, context.device, Stopwatch())
    return [{**row, "impl": subject.name} for row in rows]
