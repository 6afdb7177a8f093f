"""A snapshot as CUDA's allocator leaves it, made of a recording on a CPU, gives the values of that recording."""

import pickle
from dataclasses import replace

import pytest
import torch

from pipeline.instruments.memory.recording import Identity, record_memory
from pipeline.instruments.memory.snapshot import read_events
from pipeline.stages.memory.cell import Cell, Settings
from pipeline.stages.memory.measure import _record_steps
from pipeline.stages.memory.recorded_rows import recording_rows

CELL = Cell(size="tiny", context_length=24, checkpoint_every=1)
ON_DEVICE = 1 << 46
TORCHS_OWN = [{"filename": "torch/nn/modules/module.py", "line": 1787, "name": "_call_impl"}] * 3


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    """Record two steps on the CPU: the recording, and the entries of its snapshot."""
    path = tmp_path_factory.mktemp("files") / "snapshot.pickle"
    with record_memory(torch.device("cpu"), path) as recorder:
        _record_steps(recorder, CELL, Settings(vocab_size=300), torch.device("cpu"))
    return recorder.read(), pickle.loads(path.read_bytes())["device_traces"][0]


def as_cuda_leaves_it(entries):
    """Add what the caching allocator notes besides: segments, requests, the frames of what is released, its end."""
    trace, stacks = [{"action": "segment_alloc", "addr": ON_DEVICE, "size": 2**30, "stream": 0, "frames": []}], {}
    for entry in entries:
        noted = entry | {"addr": entry["addr"] + ON_DEVICE, "pool_id": (0, 0), "user_metadata": ""}
        if entry["action"] == "alloc":
            stacks[entry["addr"]] = entry["frames"] + TORCHS_OWN
            trace.append(noted | {"frames": stacks[entry["addr"]]})
        else:
            noted["frames"] = stacks.pop(entry["addr"], [])
            trace += [noted | {"action": "free_requested"}, noted]
    trace.append({"action": "segment_free", "addr": ON_DEVICE, "size": 2**30, "stream": 0, "frames": []})
    trace.append({"action": "oom", "device_free": 2**20, "size": 2**31, "stream": 0, "frames": TORCHS_OWN})
    trace.append({"action": "snapshot", "addr": 0, "size": 2**30, "stream": 0, "frames": []})
    blocks = [{"address": ON_DEVICE, "size": 2**21, "requested_size": 2**20, "state": "active_allocated", "frames": []}]
    return {"segments": [{"address": ON_DEVICE, "device": 0, "blocks": blocks}], "device_traces": [trace]}


def test_what_else_cudas_allocator_notes_changes_no_value(on_cpu, tmp_path):
    recording, entries = on_cpu
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(as_cuda_leaves_it(entries)))
    identities = [
        Identity(identity.name, identity.position, frozenset(address + ON_DEVICE for address in identity.addresses))
        for identity in recording.identities
    ]
    events = read_events(path, device_index=0, expected=len(recording.events))
    assert recording_rows(replace(recording, events=events, identities=identities)) == recording_rows(recording)
