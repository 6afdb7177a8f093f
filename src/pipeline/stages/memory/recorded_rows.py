"""Make the rows of one recording: peaks with their composition, the timeline, the largest allocations."""

import linecache
from collections import Counter
from functools import cache
from itertools import chain
from pathlib import Path
from types import CodeType
from typing import Any

import pipeline
from pipeline.formulas.peak_memory import CATEGORIES
from pipeline.instruments.memory.recording import Recording
from pipeline.instruments.memory.replay import (
    Allocation,
    Timeline,
    frames_within,
    phase_spans,
    replay,
    thin_out,
    timeline,
)
from pipeline.instruments.memory.snapshot import Frame
from pipeline.model.transformer import TransformerBlock
from pipeline.stages.memory.categories import classify

Row = dict[str, Any]
Phase = tuple[int, str, int, int]  # step, name, first event and event after the last

PACKAGE = Path(pipeline.__file__).parent
SUBJECTS = ("model", "attention")
TIMELINE_PARTS = 120
LARGEST = 12


def recording_rows(recording: Recording) -> list[Row]:
    """Turn a recording into rows of status ok: peaks, timeline, largest, saved and residual; see rows.py."""
    allocations = replay(recording.events)
    categories = classify(allocations, recording)
    active = timeline(allocations, categories, len(recording.events))
    phases = _numbered_phases(recording)
    *_, forward_begin, forward_end = [phase for phase in phases if phase[1] == "forward"][-1]
    found = {
        "peak": _peak_rows(phases, active),
        "timeline": _timeline_rows(phases, active),
        "largest": _largest_rows(allocations, categories, forward_begin, len(recording.events)),
        "saved": [{"activations_bytes": active.composition(forward_end).get("activations", 0)}],
        "residual": [_residual_row(allocations, forward_begin, forward_end)],
    }
    return [{"kind": kind, "status": "ok", **row} for kind, rows in found.items() for row in rows]


def _numbered_phases(recording: Recording) -> list[Phase]:
    """Return all phases but `end`, each with its step's number; step 0 comes before the first forward phase."""
    phases, step = [], 0
    for name, begin, end in phase_spans(recording):
        step += name == "forward"
        if name != "end":
            phases.append((step, name, begin, end))
    return phases


def _peak_rows(phases: list[Phase], active: Timeline) -> list[Row]:
    rows = []
    for step, phase, begin, end in phases:
        peak = active.peak(begin, end)
        made_of = active.composition(peak)
        rows.append(
            {
                "step": step,
                "phase": phase,
                "begin_event": begin,
                "end_event": end,
                "peak_event": peak,
                "peak_bytes": int(active.total_bytes[peak]),
                **{f"{name}_bytes": made_of.get(name, 0) for name in CATEGORIES},
            }
        )
    return rows


def _timeline_rows(phases: list[Phase], active: Timeline) -> list[Row]:
    moments = chain.from_iterable((begin, end, active.peak(begin, end)) for _, _, begin, end in phases)
    chosen = thin_out(active.total_bytes, TIMELINE_PARTS, keep=moments)
    return [
        {"category": name, "events": chosen, "active_bytes": [int(active.active_bytes[name][at]) for at in chosen]}
        for name in CATEGORIES
        if name in active.active_bytes
    ]


def _largest_rows(
    allocations: list[Allocation], categories: dict[Allocation, str], begin: int, event_count: int
) -> list[Row]:
    """Group equal allocations by line of code, if made in the last step or alive after it; return the largest."""
    groups = Counter(
        (allocation.size_bytes, categories[allocation], *_location(allocation.frames))
        for allocation in allocations
        if allocation.start >= begin or allocation.end == event_count
    )
    largest = sorted(groups.items(), key=lambda group: group[0][0], reverse=True)[:LARGEST]
    names = ("size_bytes", "category", "location", "code")
    return [
        {"rank": rank, "count": count, **dict(zip(names, group, strict=True))}
        for rank, (group, count) in enumerate(largest, start=1)
    ]


@cache
def _location(frames: tuple[Frame, ...]) -> tuple[str, str]:
    """Return the line of our code that made an allocation, with its caller, and the line's source text."""
    ours = [frame for subject in SUBJECTS for frame in frames_within(frames, PACKAGE / subject)]
    ours.sort(key=frames.index)
    if not ours:
        return "outside the model" if frames else "autograd's own thread", ""
    names = [_readable(frame) for frame in ours[:2]]
    return ", called from ".join(names), linecache.getline(ours[0].filename, ours[0].line).strip()


def _readable(frame: Frame) -> str:
    return f"{Path(frame.filename).relative_to(PACKAGE)}:{frame.line} {frame.function}"


def _residual_row(allocations: list[Allocation], begin: int, end: int) -> Row:
    """Return size and count of the residual sums that blocks make in a forward pass, two per block."""
    sums = [
        allocation.size_bytes
        for allocation in allocations
        if begin <= allocation.start < end and _is_made_in(allocation, TransformerBlock.forward.__code__)
    ]
    return {"size_bytes": max(sums, default=None), "smallest_bytes": min(sums, default=None), "count": len(sums)}


def _is_made_in(allocation: Allocation, code: CodeType) -> bool:
    """Return whether the allocation's innermost frame is a line of this function."""
    if not allocation.frames:
        return False
    frame = allocation.frames[0]
    lines = {line for _, _, line in code.co_lines() if line is not None}
    return frame.filename == code.co_filename and frame.line in lines
