import pickle

import pytest

from pipeline.errors import UserError
from pipeline.instruments.memory.snapshot import Frame, read_events

FRAMES = [{"filename": "/code/model.py", "line": 7, "name": "forward"}]
TRACE = [
    {"action": "segment_alloc", "addr": 0x1000, "size": 2**21, "stream": 0},
    {"action": "alloc", "addr": 0x1000, "size": 512, "stream": 0, "frames": FRAMES},
    {"action": "free_requested", "addr": 0x1000, "size": 512, "stream": 0},
    {"action": "free_completed", "addr": 0x1000, "size": 512, "stream": 0},
    {"action": "segment_free", "addr": 0x1000, "size": 2**21, "stream": 0},
    {"action": "oom", "device_free": 2**20, "size": 2**30, "stream": 0, "frames": FRAMES},
    {"action": "snapshot", "addr": 0, "size": 0, "stream": 0},
]


@pytest.fixture
def snapshot(tmp_path):
    def write(content):
        (tmp_path / "snapshot.pickle").write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))
        return tmp_path / "snapshot.pickle"

    return write


def test_only_allocations_and_completed_releases_are_events(snapshot):
    made, released = read_events(snapshot({"segments": [], "device_traces": [[], TRACE]}), device_index=1)
    assert (made.is_alloc, made.address, made.size_bytes) == (True, 0x1000, 512)
    assert made.frames == (Frame("/code/model.py", 7, "forward"),)
    assert not released.is_alloc


def test_events_get_the_right_stacks_from_shared_and_from_equal_frames(snapshot):
    inner, outer = FRAMES[0], {"filename": "/code/main.py", "line": 9, "name": "main"}
    stacks = [[inner, outer], [inner, outer], [inner], [dict(inner), outer], []]
    trace = [{"action": "alloc", "addr": place, "size": 1, "frames": stack} for place, stack in enumerate(stacks)]
    found = [[frame.line for frame in event.frames] for event in read_events(snapshot({"device_traces": [trace]}))]
    assert found == [[7, 9], [7, 9], [7], [7, 9], []]


@pytest.mark.parametrize("expected", [1, 3])
def test_too_few_or_too_many_events_and_a_missing_file_raise(snapshot, expected):
    path = snapshot({"device_traces": [TRACE]})
    assert len(read_events(path, expected=2)) == 2
    with pytest.raises(UserError, match=f"2 memory events of {expected}"):
        read_events(path, expected=expected)
    path.unlink()
    with pytest.raises(UserError, match=r"cannot read .*snapshot\.pickle"):
        read_events(path)


WHOLE = pickle.dumps({"device_traces": [TRACE]})


@pytest.mark.parametrize(
    "content",
    [
        *(WHOLE[:kept] for kept in (0, 1, 10, 60, -1)),
        b"memory went up and down\n",
        *([1, 2], {}, {"device_traces": []}, {"device_traces": [[{"no": "action"}]]}),
        {"device_traces": [[{"action": "alloc", "addr": 1}]]},
        {"device_traces": [[{"action": "alloc", "addr": 1, "size": 2, "frames": [{"line": 3}]}]]},
    ],
)
def test_a_truncated_or_foreign_file_gives_a_one_line_error(snapshot, content):
    with pytest.raises(UserError, match=r"snapshot\.pickle is no memory snapshot") as error:
        read_events(snapshot(content))
    assert "\n" not in str(error.value)


class Harmful:
    def __reduce__(self):
        return print, ("code of the file ran",)


def test_code_in_a_pickle_is_not_run(snapshot, capsys):
    with pytest.raises(UserError, match="holds builtins"):
        read_events(snapshot({"device_traces": [[Harmful()]]}))
    assert capsys.readouterr().out == ""
