"""How a stage declares its ways to train on several ranks: how to build each, and what to note about it."""

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
# Event numbers, and the active bytes after each event.
Curve = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Way:
    """One way to train.

    build: makes this way's step from a rank's plain step. captured: whether one of its steps is captured.
    communicates: whether its ranks do; the first way that does is the reference for the others' weights. is_own:
    whether it is the user's own. columns: what identifies it in rows, besides `impl`.
    """

    name: str
    build: Callable[[TrainingStep], TrainingStep]
    captured: bool = False
    communicates: bool = True
    is_own: bool = False
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Row:
        """The columns that identify it."""
        return {"impl": self.name, **self.columns}


@dataclass
class Result:
    """Results of one way's turns; times are the slowest rank's, bytes the fullest rank's.

    memory: bytes by kind, or by moment and kind; collectives: those of one step; timeline: the curve, or the reason
    why there is none.
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

    files: the folder for capture files, on rank 0 only; is_warm: whether the step has been warmed up in this turn.
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
    """Return the weights of a model that every rank holds in full."""
    return named(step.model)


def nothing(_cell: Any) -> tuple[Any, ...]:
    """Return no arguments."""
    return ()


@dataclass(frozen=True)
class Experiment:
    """What a stage measures.

    ways: in the order of their turns. first_turn: the actions (mostly from `pipeline.ways.notes`) of a way's first
    turn, in order; later turns only time steps. whole_step: the columns that identify the row of a whole step. rows:
    makes the rows of a way from the way, its result, the cell and the backend.

    own_ways: makes the ways for a user's implementation that passed its check, given how the check found it must be
    called; check_arguments: returns the check's arguments for a cell.

    weights: returns the full weights of a step; may be a collective. alike_up_to: the most ranks on which all ways
    average gradients alike, so that their weights must agree, see `Differences.complaint`. make_room: runs before each
    first turn.
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
