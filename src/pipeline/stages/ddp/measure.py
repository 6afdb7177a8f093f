"""Measure a ddp cell: the training step of every variant in the same ranks, by phase and clock."""

import inspect
from dataclasses import replace
from functools import partial
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from pipeline.instruments.profilers.collective_traffic import total_bytes
from pipeline.instruments.sampling.weight_differences import TOLERANCE
from pipeline.model.step import TrainingStep
from pipeline.parallel import BucketedDDP, FlatDDP, NaiveDDP, OverlapDDP
from pipeline.stages.ddp.cell import (
    BUCKET_SIZES_MB,
    CAPTURED,
    CAPTURED_STEP,
    PROFILER,
    SUBJECTS,
    VARIANTS,
    WHOLE_STEP,
    Cell,
    Variant,
)
from pipeline.subjects.naming import Subject
from pipeline.ways import notes
from pipeline.ways.measure import time_rows
from pipeline.ways.nsys_captures import measure_and_capture
from pipeline.ways.way import Experiment, Result, Row, Way

OURS = {"naive": NaiveDDP, "flat": FlatDDP, "overlap": OverlapDDP, "bucketed": BucketedDDP}
# torch 2.13 renamed the option to send buffers before each forward pass.
SEND_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)
TORCHS: dict[str, dict[str, Any]] = {
    "torch": {},
    "torch_tuned": {SEND_BUFFERS: False, "gradient_as_bucket_view": True},
}


def build(variant: Variant, step: TrainingStep) -> TrainingStep:
    """Wrap the model of a rank's step; the wrapper copies rank 0's weights to every rank.

    torch's DDP waits for its communication inside backward, so it needs no `finish_gradients`.
    """
    if variant.impl == "none":
        return step
    if variant.impl in TORCHS:
        options = TORCHS[variant.impl]
        return replace(step, model=DistributedDataParallel(step.model, bucket_cap_mb=variant.bucket_size_mb, **options))
    bucket_size = () if variant.bucket_size_mb is None else (variant.bucket_size_mb,)
    wrapped = OURS[variant.impl](step.model, *bucket_size)
    return replace(step, model=wrapped, finish_gradients=wrapped.finish_gradient_synchronization)


def build_own(subject: Subject, bucket_size_mb: int | None, step: TrainingStep) -> TrainingStep:
    """Wrap the model of a rank's step in the user's wrapper."""
    from pipeline.subjects.wrapping import Wrapped

    own = Wrapped(step.model, subject, bucket_size_mb)
    own.optimizer = step.optimizer
    return replace(step, model=own, finish_gradients=own.finish_gradients)


WAYS = [
    Way(
        variant.impl,
        partial(build, variant),
        captured=variant.impl in CAPTURED,
        communicates=variant.impl not in SUBJECTS.apart,
        columns={"bucket_size_mb": variant.bucket_size_mb},
    )
    for variant in VARIANTS
]


def own_ways(subject: Subject, how: str) -> list[Way]:
    """Return the ways for the user's wrapper; one that takes a bucket size is measured at each of ours."""
    from pipeline.subjects.training_check import BUCKETS

    sizes = BUCKET_SIZES_MB if how == BUCKETS else (None,)
    return [
        Way(subject.name, partial(build_own, subject, size), is_own=True, columns={"bucket_size_mb": size})
        for size in sizes
    ]


def rows(way: Way, result: Result, cell: Cell, backend: str) -> list[Row]:
    """Make the rows of one variant: a row per phase and clock, and one for the captured step."""
    calls = [call for call in result.collectives if call.name == "allreduce"]
    times = time_rows(
        result,
        backend=backend,
        peak_bytes=result.memory.get("peak"),
        gradient_bytes=sum(result.parameter_bytes),
        all_reduces=len(calls),
        all_reduce_bytes=total_bytes(calls),
        variant_difference=result.differences.from_reference,
        weight_tolerance=TOLERANCE[cell.precision],
    )
    if result.lanes is None:
        return times
    return [*times, {"phase": CAPTURED_STEP, "clock": PROFILER, "status": "ok", **result.lanes.columns()}]


EXPERIMENT = Experiment(
    WAYS,
    first_turn=(
        notes.note_parameters,
        notes.warm_up,
        notes.time_steps,
        notes.note_peak,
        notes.compare_weights,  # also without communication: they must differ
        notes.note_traffic,
    ),
    whole_step=WHOLE_STEP,
    rows=rows,
    own_ways=own_ways,
    alike_up_to=2,  # on more ranks the order of a sum matters
)
measure = partial(measure_and_capture, str(__package__), EXPERIMENT)
