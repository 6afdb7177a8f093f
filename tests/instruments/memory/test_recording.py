import gc
import inspect
import pickle
from functools import partial
from pathlib import Path

import pytest
import torch

from pipeline.errors import UserError
from pipeline.instruments.memory.recording import record_memory
from pipeline.instruments.memory.replay import frames_within, phase_spans, replay, timeline
from pipeline.instruments.memory.snapshot import read_events

MIB = 2**20
CPU = torch.device("cpu")
CUDA = torch.device("cuda")
HERE = Path(__file__)

DEVICES = [CPU, pytest.param(CUDA, marks=pytest.mark.gpu)]


def megabytes(count, device):
    return torch.empty(count * MIB, dtype=torch.uint8, device=device)


def of_size(recording, size):
    return [made for made in replay(recording.events) if made.size_bytes == size]


@pytest.fixture(params=DEVICES, ids=lambda device: device.type)
def device(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    return tmp_path / "snapshot.pickle"


def test_phases_divide_the_events_and_every_allocation_has_its_size_and_end(device, path):
    with record_memory(device, path) as recorder:
        recorder.phase("one")
        first = megabytes(3, device)
        recorder.phase("two")
        kept = [megabytes(5, device), megabytes(5, device)]
        del first
        recorder.phase("end")
    recording = recorder.read()
    spans = {name: range(begin, end) for name, begin, end in phase_spans(recording)}
    assert list(spans) == ["one", "two", "end"]
    (released,), others = of_size(recording, 3 * MIB), of_size(recording, 5 * MIB)
    assert released.start in spans["one"]
    assert released.end in spans["two"]
    assert all(made.start in spans["two"] for made in others)
    assert {made.end for made in others} == {len(recording.events)}
    assert {made.address for made in others} == {each.untyped_storage().data_ptr() for each in kept}


def test_identified_tensors_are_found_by_their_storage(device, path):
    with record_memory(device, path) as recorder:
        tensor, _other = megabytes(3, device), megabytes(3, device)
        recorder.identify("mine", [tensor[MIB:]])
    recording = recorder.read()
    (identity,) = recording.identities
    alive = [made for made in of_size(recording, 3 * MIB) if made.is_alive_at(identity.position)]
    assert len(alive) == 2
    assert identity.addresses == {tensor.untyped_storage().data_ptr()} < {made.address for made in alive}


def test_an_allocation_knows_the_line_that_requested_it(device, path):
    with record_memory(device, path) as recorder:
        line = inspect.currentframe().f_lineno + 1
        _kept = megabytes(7, device)
    (made,) = of_size(recorder.read(), 7 * MIB)
    inner, outer, *_ = frames_within(made.frames, HERE)
    assert inner.function == "megabytes"
    assert (outer.function, outer.line) == (inspect.currentframe().f_code.co_name, line)


@pytest.mark.gpu
def test_memory_from_before_the_recording_shows_as_a_base(path):
    before = megabytes(9, CUDA)
    with record_memory(CUDA, path) as recorder:
        del before
    (made,) = of_size(recorder.read(), 9 * MIB)
    assert made.start < 0


def test_on_a_cpu_releases_of_memory_from_before_the_recording_are_not_seen(path):
    # Sizes that no other test uses, since a recording sees releases of what an earlier one saw allocated.
    before = megabytes(9, CPU)
    with record_memory(CPU, path) as recorder:
        del before
        _kept = megabytes(13, CPU)
    recording = recorder.read()
    assert [len(of_size(recording, size * MIB)) for size in (9, 13)] == [0, 1]


def test_the_snapshot_is_written_even_if_memory_runs_out(device, path):
    def run_out():
        with record_memory(device, path):
            _kept = megabytes(3, device)
            raise torch.OutOfMemoryError("no more")

    with pytest.raises(torch.OutOfMemoryError):
        run_out()
    assert 3 * MIB in [event.size_bytes for event in read_events(path)]


class FakeAllocator:
    """Stand in for CUDA's caching allocator: its counts, its history and its snapshot."""

    def __init__(self):
        self.counts = {"active.all.allocated": 1000, "active.all.freed": 400}
        self.trace, self.limit = None, None

    def record(self, enabled, *, max_entries=None, **_):
        self.trace, self.limit = ([] if enabled else None), max_entries

    def dump(self, filename):
        Path(filename).write_bytes(pickle.dumps({"device_traces": [self.trace[-self.limit :]]}))

    def happen(self, action, address):
        """Simulate an event: update the allocator's counts and its history."""
        counted = {"alloc": "active.all.allocated", "free_completed": "active.all.freed"}
        if action in counted:
            self.counts[counted[action]] += 1
        if self.trace is not None:
            self.trace.append({"action": action, "addr": address, "size": 512, "stream": 0})


@pytest.fixture
def allocator(monkeypatch):
    found = FakeAllocator()
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _device: dict(found.counts))
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", found.record)
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", found.dump)
    return found


def test_cuda_phases_begin_at_the_allocators_event_count_and_dropped_events_raise(allocator, path):
    with record_memory(CUDA, path) as recorder:
        recorder.phase("one")
        for action in ("segment_alloc", "alloc", "free_requested", "free_completed"):
            allocator.happen(action, 1)
        recorder.phase("two")
        allocator.happen("alloc", 2)
    recording = recorder.read()
    assert recording.phases == [("one", 0), ("two", 2)]
    assert [made.address for made in replay(recording.events)] == [1, 2]
    assert allocator.trace is None  # it no longer records
    with record_memory(CUDA, path, max_entries=3) as recorder:
        for address in range(5):
            allocator.happen("alloc", address)
    with pytest.raises(UserError, match="has 3 memory events of 5"):
        recorder.read()


class Released:
    def __init__(self, allocator, address):
        self.itself, self.allocator, self.address = self, allocator, address
        allocator.happen("alloc", address)

    def __del__(self):
        self.allocator.happen("free_completed", self.address)


def test_garbage_collection_cannot_make_the_history_differ_from_its_count(allocator, path, monkeypatch, request):
    def counts_and_garbage_around(device):
        """Run the collector, if it is on, before and after the counts are read."""
        gc.isenabled() and gc.collect()
        counts = dict(allocator.counts)
        gc.isenabled() and gc.collect()
        return counts

    request.addfinalizer(partial(gc.set_threshold, *gc.get_threshold()))
    gc.set_threshold(0)  # the collector is on, but runs only where it is called
    monkeypatch.setattr(torch.cuda, "memory_stats", counts_and_garbage_around)
    Released(allocator, 1)
    with record_memory(CUDA, path) as recorder:
        Released(allocator, 2)
    assert [event.address for event in recorder.read().events] == [2]
    gc.collect()


@pytest.mark.gpu
def test_the_replayed_peak_is_that_of_the_caching_allocator(path):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    with record_memory(CUDA, path) as recorder:
        layer = torch.nn.Linear(1000, 3000, device=CUDA)
        layer(torch.randn(77, 1000, device=CUDA)).square().sum().backward()
    recording = recorder.read()
    allocations = replay(recording.events)
    active = timeline(allocations, dict.fromkeys(allocations, "all"), len(recording.events))
    outside = before - sum(made.size_bytes for made in allocations if made.start < 0)
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    assert active.total_bytes.max() + outside == peak
