import sqlite3
from contextlib import closing

import pytest

from pipeline.instruments.profilers.nsys import CaptureFailed
from pipeline.instruments.profilers.nsys_export import read_export

# Of nsys's own schema, the tables that a capture with --trace=cuda,nvtx fills, in its column types.
SCHEMA = """
    CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
        contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
        globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER);
    CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
        eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
        returnValue INTEGER NOT NULL, callchainId INTEGER);
    CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
        category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
        domainId INTEGER, uint64Value INTEGER);
"""
COPIES = """
    CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
        contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
        bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
    CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
        contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
        value INTEGER NOT NULL, bytes INTEGER NOT NULL);
    INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (9000, 9500, 0, 1, 7, 4, 0, 64, 8), (9600, 9700, 0, 1, 7, 5, 0, 4, 2);
    INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (9800, 9900, 0, 1, 7, 6, 0, 0, 64);
"""
PROCESS = (77 << 24) | 4242 << 24
MAIN, AUTOGRAD = PROCESS | 4242, PROCESS | 4300


def make(path, *more):
    with closing(sqlite3.connect(path)) as database:
        database.executescript(SCHEMA)
        names = [(1, "void softmax_warp_forward<float>(float *)"), (2, "softmax_warp_forward"), (3, "cudaLaunchKernel")]
        names += [(4, "nvjet_tst_128x8_64x12_4x1_v_bz_TNT"), (5, "train_step")]
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", names)
        ranges = [
            (0, 8000, 59, None, None, None, None, MAIN, None, 5, 0, None),  # a registered string
            (1000, 3000, 59, None, None, None, "softmax", MAIN, None, None, 0, None),
            (4000, None, 59, None, None, None, "backward", MAIN, None, None, 0, None),  # cut off by the capture's end
            (1500, 1600, 34, None, None, None, "a mark", MAIN, None, None, 0, None),
        ]
        database.executemany(f"INSERT INTO NVTX_EVENTS VALUES ({', '.join('?' * 12)})", ranges)
        kernels = [(5000, 6500, 7, 1, 1, 2), (6500, 8500, 7, 2, 4, 4), (9900, 9950, 9, 3, 1, 2)]
        for start, end, stream, correlation, demangled, short in kernels:
            row = (start, end, 0, 1, None, stream, correlation, PROCESS, demangled, short, None)
            database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * 11)})", row)
        calls = [(1200, 1210, MAIN, 1), (4500, 4510, AUTOGRAD, 2), (9000, 9001, MAIN, 3), (100, 110, MAIN, None)]
        for start, end, thread, correlation in calls:
            row = (start, end, 0, thread, correlation, 3, 0, None)
            database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({', '.join('?' * 8)})", row)
        for script in more:
            database.executescript(script)
        database.commit()
    return path


@pytest.fixture
def export(tmp_path):
    return make(tmp_path / "capture.sqlite")


def test_kernels_have_their_full_name_time_and_the_range_that_launched_them(export):
    trace = read_export(export)
    events = trace.events.set_index("correlation")
    assert trace.profiler == "nsys"
    assert events.loc[1, "name"] == "void softmax_warp_forward<float>(float *)"
    assert list(events.loc[1, ["start_us", "duration_us", "stream"]]) == [5.0, 1.5, 7]
    assert dict(events["path"]) == {1: "train_step/softmax", 2: "train_step/backward", 3: ""}
    assert dict(events["category"]) == {1: "softmax", 2: "matmul", 3: "softmax"}


def test_of_two_calls_with_one_number_the_first_is_the_launch(tmp_path):
    after_softmax = f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (3500, 3510, 0, {MAIN}, 1, 3, 0, NULL);"
    events = read_export(make(tmp_path / "capture.sqlite", after_softmax)).events
    assert list(events.loc[events["correlation"] == 1, "path"]) == ["train_step/softmax"]


def test_ranges_are_those_pushed_and_popped_not_marks_and_end_with_the_capture(export):
    ranges = read_export(export).ranges.set_index("path")
    assert set(ranges.index) == {"train_step", "train_step/softmax", "train_step/backward"}
    assert ranges.loc["train_step/backward", "duration_us"] == 4.0


def test_copies_and_fills_are_device_work_too_where_there_were_any(tmp_path):
    trace = read_export(make(tmp_path / "with_copies.sqlite", COPIES))
    copies = trace.events[trace.events["category"] == "copy"]
    assert list(copies["name"]) == ["[CUDA memcpy Device-to-Device]", "[CUDA memcpy Device-to-Host]", "[CUDA memset]"]
    assert len(trace.events) == 6


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (0, ".+"),
        (100, ".+"),
        (9000, ".+"),
        (b"These are notes. " * 100, "file is not a database$"),
        (None, "unable to open"),
    ],
)
def test_what_is_no_whole_export_gives_one_clear_line_and_is_not_made(export, content, said):
    whole = export.read_bytes()
    export.unlink()
    if content is not None:
        export.write_bytes(whole[:content] if isinstance(content, int) else content)
    with pytest.raises(CaptureFailed, match=rf"^capture.sqlite is no whole nsys export: {said}") as failure:
        read_export(export)
    assert "\n" not in str(failure.value)
    assert export.exists() == (content is not None)


@pytest.mark.parametrize(("table", "lack"), [("CUPTI_ACTIVITY_KIND_KERNEL", "kernel"), ("NVTX_EVENTS", "range")])
def test_a_capture_without_kernels_or_ranges_says_so(tmp_path, table, lack):
    path = make(tmp_path / "empty.sqlite", f"DELETE FROM {table};")
    with pytest.raises(CaptureFailed, match=rf"^empty.sqlite holds no {lack}$"):
        read_export(path)
