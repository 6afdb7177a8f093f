"""Classify each allocation by the tensor it holds, else by the phase that made it and its lifetime.

The first rule that applies:

1. parameters, gradients, optimizer_state: it holds the storage of such a tensor, matched by address while alive.
2. activations: made in a forward phase and alive when it ends (so kept for the backward pass), but gone when the next
   forward phase ends (so not a library's workspace); or made in a backward phase by the code of the model's forward
   pass (so recomputed).
3. temporaries: released before recording ends.
4. other: everything else, such as the batch, rotary tables and libraries' workspaces.
"""

from bisect import bisect_right
from pathlib import Path

from pipeline.instruments.memory.recording import Recording
from pipeline.instruments.memory.replay import Allocation, frames_within, phase_spans
from pipeline.model import transformer

FORWARD_CODE = Path(transformer.__file__)


def classify(allocations: list[Allocation], recording: Recording) -> dict[Allocation, str]:
    """Return the category of each allocation."""
    owned = _owned(allocations, recording)
    spans = phase_spans(recording)
    begins = [begin for _, begin, _ in spans]
    return {
        # An event belongs to the last phase that begins at or before it; earlier events belong to none.
        allocation: owned.get(allocation)
        or _by_phase(allocation, spans, bisect_right(begins, allocation.start) - 1, len(recording.events))
        for allocation in allocations
    }


def _owned(allocations: list[Allocation], recording: Recording) -> dict[Allocation, str]:
    owned = {}
    for identity in recording.identities:
        for allocation in allocations:
            if allocation.address in identity.addresses and allocation.is_alive_at(identity.position):
                owned[allocation] = identity.name
    return owned


def _by_phase(allocation: Allocation, spans: list[tuple[str, int, int]], index: int, event_count: int) -> str:
    phase = spans[index][0] if index >= 0 else ""
    if phase == "forward":
        ends = [end for name, _, end in spans[index:] if name == "forward"]
        if allocation.end >= ends[0] and (len(ends) == 1 or allocation.end < ends[1]):
            return "activations"
    if phase == "backward" and frames_within(allocation.frames, FORWARD_CODE):
        return "activations"
    return "temporaries" if allocation.end < event_count else "other"
