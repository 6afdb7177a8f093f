"""Predict the memory of data-parallel training with AdamW from the sizes of the parameters alone.

Symbols: s bytes of the parameters, n ranks. Gradients are as large as the parameters; AdamW keeps two moments of that
size. With a sharded optimizer a rank keeps the moments only for its share of the parameters, about s / n.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.formulas.training_state import ADAMW_MOMENTS
from pipeline.parallel.partition import least_loaded

STEP_COUNTER_BYTES = 4


@dataclass(frozen=True)
class Share:
    """The parameters that a rank's optimizer updates: number of tensors, and bytes."""

    tensors: int
    bytes: int


def whole(parameter_bytes: Sequence[int]) -> Share:
    """Return the share of a rank that updates all parameters itself."""
    return Share(len(parameter_bytes), sum(parameter_bytes))


def fullest_share(parameter_bytes: Sequence[int], world_size: int) -> Share:
    """Return the largest share if tensors are assigned, largest first, each to the rank with the least so far."""
    loads = [0] * world_size
    owners = least_loaded(list(parameter_bytes), loads)
    fullest = loads.index(max(loads))
    return Share(owners.count(fullest), loads[fullest])


def kinds_bytes(parameter_bytes: Sequence[int], share: Share, moment: str, counters_on_device: bool) -> dict[str, int]:
    """Return the bytes of parameters, gradients and optimizer state at a moment.

    moment: initialised, first_before_step, first_after_step, before_step or after_step; the first step starts without
    state. counters_on_device: whether AdamW's step counters are on the parameters' device; with a GPU they are on the
    host.
    """
    total = sum(parameter_bytes)
    counters = STEP_COUNTER_BYTES * share.tensors if counters_on_device else 0
    has_state = moment not in ("initialised", "first_before_step")
    return {
        "parameters": total,
        "gradients": 0 if moment == "initialised" else total,
        "optimizer_state": ADAMW_MOMENTS * share.bytes + counters if has_state else 0,
    }


def step_peak_bytes(parameter_bytes: Sequence[int], share: Share) -> int:
    """Return the peak during a step of PyTorch's multi-tensor ("foreach") AdamW on a GPU, without counters.

    It consists of all kinds and one temporary as large as the share: the square roots of all its second moments.
    """
    return sum(kinds_bytes(parameter_bytes, share, "after_step", counters_on_device=False).values()) + share.bytes


def backward_peak_bytes(first_peak_bytes: int, share: Share) -> int:
    """Return the peak of a later forward and backward: the first one's plus the state, which did not exist then."""
    return first_peak_bytes + ADAMW_MOMENTS * share.bytes
