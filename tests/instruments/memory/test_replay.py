from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import UserError
from pipeline.instruments.memory.recording import Recording
from pipeline.instruments.memory.replay import BEFORE, frames_within, phase_spans, replay, thin_out, timeline
from pipeline.instruments.memory.snapshot import Frame, MemoryEvent


def alloc(address, size, *frames):
    return MemoryEvent(True, address, size, frames)


def free(address, size):
    return MemoryEvent(False, address, size)


@pytest.mark.parametrize(
    ("events", "active", "spans"),
    [
        (
            [alloc(1, 100), alloc(2, 10), free(1, 100), alloc(3, 5), free(3, 5), free(2, 10)],
            [0, 100, 110, 10, 15, 10, 0],
            [(0, 2), (1, 5), (3, 4)],  # in the order in which they were made, not released
        ),
        # A reused address is another allocation.
        ([alloc(1, 100), free(1, 100), alloc(1, 40)], [0, 100, 0, 40], [(0, 1), (2, 3)]),
        # Memory from before the recording is a base.
        ([alloc(2, 10), free(1, 70), free(2, 10)], [70, 80, 10, 0], [(BEFORE, 1), (0, 2)]),
    ],
)
def test_active_memory_is_what_is_allocated_and_not_yet_released(events, active, spans):
    allocations = replay(events)
    assert list(timeline(allocations, dict.fromkeys(allocations, "all"), len(events)).total_bytes) == active
    assert [(made.start, made.end) for made in allocations] == spans


def test_an_address_allocated_twice_means_missing_events():
    with pytest.raises(UserError, match="events are missing"):
        replay([alloc(1, 100), alloc(2, 5), alloc(1, 40)])


def test_an_allocation_is_alive_from_its_event_to_its_release_if_any():
    released, kept = replay([alloc(1, 100), free(1, 100), alloc(1, 5)])
    assert [released.is_alive_at(position) for position in range(4)] == [False, True, False, False]
    assert [kept.is_alive_at(position) for position in range(4)] == [False, False, False, True]


def test_categories_add_up_to_the_total():
    events = [alloc(1, 100), alloc(2, 10), free(1, 100), alloc(3, 5)]
    allocations = replay(events)
    categories = {made: "even" if made.address % 2 == 0 else "odd" for made in allocations}
    active = timeline(allocations, categories, len(events))
    assert list(active.active_bytes["even"]) == [0, 0, 10, 10, 10]
    assert list(active.total_bytes) == [0, 100, 110, 10, 15]
    assert (active.peak(0, 4), active.peak(3, 4)) == (2, 4)
    assert active.composition(2) == {"odd": 100, "even": 10}


def test_a_phase_lasts_until_the_next():
    recording = Recording([alloc(1, 1)] * 9, [("build", 0), ("forward", 4), ("end", 9)])
    assert phase_spans(recording) == [("build", 0, 4), ("forward", 4, 9), ("end", 9, 9)]


@pytest.mark.parametrize("buckets", [1, 7, 100])
def test_thinning_out_keeps_every_peak(buckets):
    series = np.random.default_rng(0).integers(0, 1000, 500)
    series[[3, 250, 251, 497]] = [5000, 6000, 0, 7000]
    chosen = thin_out(series, buckets, keep=[123])
    assert len(chosen) <= 2 * buckets + 3
    assert {0, 123, 499} <= set(chosen)
    assert chosen == sorted(set(chosen))
    assert (series[chosen].max(), series[chosen].min()) == (series.max(), series.min())
    for part in np.array_split(np.arange(500), buckets):
        assert series[part].max() in series[[position for position in chosen if position in part]]


def test_frames_of_a_place_come_innermost_first():
    frames = (Frame("/lib/torch/linear.py", 1, "forward"), Frame("/a/b/x.py", 2, "g"), Frame("/a/y.py", 3, "f"))
    (made,) = replay([alloc(1, 1, *frames)])
    assert [frame.function for frame in frames_within(made.frames, Path("/a"))] == ["g", "f"]
    assert frames_within(made.frames, Path("/a/y.py")) == (frames[2],)
