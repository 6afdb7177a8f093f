"""The training step of each variant on one rank."""

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from pipeline.formulas.sizes import SIZES
from pipeline.model.step import TrainingStep, build_training_step
from pipeline.parallel import BucketedDDP, FlatDDP, NaiveDDP, OverlapDDP
from pipeline.stages.ddp.cell import Cell, Settings, Variant

if TYPE_CHECKING:
    from pipeline.subjects.naming import Subject

OURS = {"naive": NaiveDDP, "flat": FlatDDP, "overlap": OverlapDDP, "bucketed": BucketedDDP}
# Not to send buffers before each forward pass has another name from torch 2.13 on.
SEND_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)
TORCHS: dict[str, dict[str, Any]] = {
    "torch": {},
    "torch_tuned": {SEND_BUFFERS: False, "gradient_as_bucket_view": True},
}


def build_step(
    variant: Variant, cell: Cell, settings: Settings, rank: int, device: torch.device, subject: "Subject | None" = None
) -> TrainingStep:
    """Build a rank's step: model and tokens use the rank's own seed, so that averaging makes a difference.

    All wrappers copy rank 0's weights to every rank. torch's waits for its communication inside backward.
    subject: the wrapper, where the variant is of the user's own.
    """
    step = build_training_step(
        SIZES[cell.size],
        vocab_size=settings.vocab_size,
        context_length=cell.context_length,
        batch_size=cell.batch_size_per_rank,
        precision=cell.precision,
        device=device,
        seed=rank,
    )
    if variant.impl == "none":
        return step
    if subject is not None:
        from pipeline.subjects.wrapping import Wrapped

        own = Wrapped(step.model, subject, variant.bucket_size_mb)
        own.optimizer = step.optimizer
        return replace(step, model=own, finish_gradients=own.finish_gradients)
    if variant.impl in TORCHS:
        options = TORCHS[variant.impl]
        return replace(step, model=DistributedDataParallel(step.model, bucket_cap_mb=variant.bucket_size_mb, **options))
    bucket_size = () if variant.bucket_size_mb is None else (variant.bucket_size_mb,)
    wrapped = OURS[variant.impl](step.model, *bucket_size)
    return replace(step, model=wrapped, finish_gradients=wrapped.finish_gradient_synchronization)


def phases(step: TrainingStep) -> dict:
    """Return the step's phases in their order; `communication` is the wait that remains after backward."""
    waiting = {} if step.finish_gradients is None else {"communication": step.synchronize_gradients}
    return {"forward": step.forward, "backward": step.backward, **waiting, "optimizer": step.optimizer_step}
