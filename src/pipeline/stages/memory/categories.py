"""What each allocation is: by whose tensor it holds, else by the phase that made it and how long it stayed.

The rules, the first that fits:

1. parameters, gradients, optimizer_state: it holds such a tensor's storage, found by its address while alive.
2. activations: made in a forward phase and alive when that phase ends, so kept for the backward pass; or made in a
   backward phase by the code of the model's forward pass, so recomputed.
3. temporaries: anything else that is released before recording ends.
4. other: anything else: the batch, the tables of the rotations, workspaces of libraries.
"""

from bisect import bisect_right
from pathlib import Path

from pipeline.instruments.memory import Recording
from pipeline.instruments.memory_replay import Allocation, frames_within, phase_spans
from pipeline.model import transformer

FORWARD_CODE = Path(transformer.__file__)


def classify(allocations: list[Allocation], recording: Recording) -> dict[Allocation, str]:
    """Name the category of each allocation."""
    spans = phase_spans(recording)
    begins = [begin for _, begin, _ in spans]
    owned = _owned(allocations, recording)
    found = {}
    for allocation in allocations:
        # An event at index i happens in the phase that begins at or before it; what was there before has none.
        place = bisect_right(begins, allocation.start) - 1
        name, end = (spans[place][0], spans[place][2]) if place >= 0 else ("", 0)
        found[allocation] = owned.get(allocation) or _by_phase(allocation, name, end, len(recording.events))
    return found


def _owned(allocations: list[Allocation], recording: Recording) -> dict[Allocation, str]:
    owned = {}
    for identity in recording.identities:
        for allocation in allocations:
            if allocation.address in identity.addresses and allocation.is_alive_at(identity.position):
                owned[allocation] = identity.name
    return owned


def _by_phase(allocation: Allocation, phase: str, phase_end: int, event_count: int) -> str:
    if phase == "forward" and allocation.end >= phase_end:
        return "activations"
    if phase == "backward" and frames_within(allocation, FORWARD_CODE):
        return "activations"
    return "temporaries" if allocation.end < event_count else "other"
