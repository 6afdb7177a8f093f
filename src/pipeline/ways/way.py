"""Ways to train on several ranks, as a stage declares them: how each is built, and what is noted of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.instruments.memory.rank_memory import begin_anew
from pipeline.instruments.profilers.collective_traffic import Collective
from pipeline.instruments.profilers.gpu_busy import GpuBusy
from pipeline.instruments.profilers.lanes import Lanes
from pipeline.instruments.sampling.step_timing import Sampling
from pipeline.instruments.sampling.weight_differences import Comparison, Differences, named
from pipeline.model.step import TrainingStep
from pipeline.parallel.processes.starting import RankContext
from pipeline.subjects.naming import Subject
from pipeline.ways.cell import RanksSettings

Row = dict[str, Any]
# Numbers of events, and the bytes that were active after each.
Curve = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Way:
    """One way to train.

    build: makes the step of this way from a rank's plain one. captured: whether one of its steps is captured.
    communicates: whether its ranks do; the first that does is what others' weights are compared with. is_own: whether
    it is of the user's own. columns: what names it in rows beside `impl`.
    """

    name: str
    build: Callable[[TrainingStep], TrainingStep]
    captured: bool = False
    communicates: bool = True
    is_own: bool = False
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Row:
        """The columns that name it."""
        return {"impl": self.name, **self.columns}


@dataclass
class Result:
    """What the turns of one way gave; times are the slowest rank's, bytes the fullest rank's.

    memory: bytes by what they hold, or by moment and that; collectives: of one step; timeline: or why there is none.
    """

    samplings: list[Sampling] = field(default_factory=list)
    memory: dict[Any, float] = field(default_factory=dict)
    collectives: list[Collective] = field(default_factory=list)
    parameter_bytes: list[int] = field(default_factory=list)
    loss: float | None = None
    differences: Differences = field(default_factory=Differences)
    pinned_core: int | None = None
    busy: GpuBusy | None = None
    lanes: Lanes | None = None
    timeline: Curve | str | None = None


@dataclass
class Turn:
    """A turn of a way on one rank.

    files: the folder for what is kept of captures, on rank 0; is_warm: whether what is noted has warmed its step up.
    """

    way: Way
    step: TrainingStep
    result: Result
    context: RankContext
    settings: RanksSettings
    comparison: Comparison
    weights: Callable[[TrainingStep], Mapping[str, Tensor]]
    files: Path | None = None
    is_warm: bool = False


def weights_of_model(step: TrainingStep) -> Mapping[str, Tensor]:
    """Return the weights of a model that every rank has in full."""
    return named(step.model)


def nothing(_cell: Any) -> tuple[Any, ...]:
    """Return no arguments."""
    return ()


@dataclass(frozen=True)
class Experiment:
    """What a stage measures.

    ways: in the order of their turns. first_turn: what is done in the first turn of each, in this order, of
    `pipeline.ways.notes`; in the others steps are timed. whole_step: the columns of a row of a whole step. rows: makes
    the rows of a way from its result, its cell and the backend.

    own_ways: makes the ways of an implementation of the user's own that passed its check, and of how that says it wants
    to be called; check_arguments: of the check, in a cell.

    weights: returns the weights of a step in full, which may be a collective. alike_up_to: on how many ranks all ways
    average gradients alike, so that their weights must agree, see `Differences.complaint`. make_room: what comes before
    a first turn.
    """

    ways: Sequence[Way]
    first_turn: Sequence[Callable[[Turn], None]]
    whole_step: Mapping[str, str]
    rows: Callable[[Way, Result, Any, str], list[Row]]
    own_ways: Callable[[Subject, str], list[Way]]
    check_arguments: Callable[[Any], tuple[Any, ...]] = nothing
    weights: Callable[[TrainingStep], Mapping[str, Tensor]] = weights_of_model
    alike_up_to: float = 0
    make_room: Callable[[torch.device], None] = begin_anew
