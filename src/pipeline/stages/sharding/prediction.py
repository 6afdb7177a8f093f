"""Predict the memory of data-parallel training with AdamW from the sizes of the parameters alone.

Symbols: s bytes of the parameters, n ranks. Gradients are as large as the parameters; AdamW keeps two moments of that
size. With a sharded optimizer a rank keeps the moments only for its share of the parameters, about s / n.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.formulas.training_state import ADAMW_MOMENTS
from pipeline.parallel.partition import least_loaded
from pipeline.stages.sharding.cell import ALLOCATOR_KINDS, MOMENTS

STEP_COUNTER_BYTES = 4


@dataclass(frozen=True)
class Share:
    """The parameters that a rank's optimizer updates: number of tensors, and bytes."""

    tensors: int
    bytes: int


def fullest_share(parameter_bytes: Sequence[int], world_size: int) -> Share:
    """Return the largest share if tensors are assigned, largest first, each to the rank with the least so far."""
    loads = [0] * world_size
    owners = least_loaded(list(parameter_bytes), loads)
    fullest = loads.index(max(loads))
    return Share(owners.count(fullest), loads[fullest])


def memory_bytes(total: int, share: Share, first_peaks: Mapping[str, int] | None) -> dict[tuple[str, str], int]:
    """Return bytes by moment and kind; the first step starts without optimizer state.

    total: bytes of the parameters. first_peaks: on a GPU, by kind, the peaks of the first forward and backward, which
    later ones exceed by the state; None on a CPU. There AdamW's step counters count as state; with a GPU they are on
    the host. Although the allocator rounds requests up, one prediction serves for bytes requested and given out. A step
    of PyTorch's multi-tensor ("foreach") AdamW peaks with one temporary as large as the share: the square roots of all
    its second moments.
    """
    state = ADAMW_MOMENTS * share.bytes + (0 if first_peaks else STEP_COUNTER_BYTES * share.tensors)
    found: dict[tuple[str, str], int] = {}
    for moment in MOMENTS:
        kinds = {
            "parameters": total,
            "gradients": 0 if moment == "initialised" else total,
            "optimizer_state": 0 if moment in ("initialised", "first_before_step") else state,
        }
        totals = dict.fromkeys(ALLOCATOR_KINDS, sum(kinds.values()))
        found |= {(moment, kind): size for kind, size in (kinds | totals).items()}
    for peak, first_bytes in (first_peaks or {}).items():
        found["initialised", peak] = total
        found["before_step", peak] = first_bytes + state
        found["first_after_step", peak] = found["after_step", peak] = 2 * total + state + share.bytes
    return found
