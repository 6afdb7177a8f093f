import sqlite3
from contextlib import closing

import pytest

from pipeline.instruments.profilers.nsys import CaptureFailed
from pipeline.instruments.profilers.nsys_export import read_export

# The tables of nsys's schema that a capture with --trace=cuda,nvtx fills, with the columns that are read.
SCHEMA = """
    CREATE TABLE StringIds (id INTEGER, value TEXT);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, streamId INTEGER, correlationId INTEGER,
        demangledName INTEGER, shortName INTEGER);
    CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER);
    CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER,
        textId INTEGER);
"""
COPIES = """
    CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, streamId INTEGER, correlationId INTEGER,
        copyKind INTEGER);
    CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, streamId INTEGER, correlationId INTEGER);
    INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (9000, 9500, 7, 4, 8), (9600, 9700, 7, 5, 2);
    INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (9800, 9900, 7, 6);
"""
MAIN, AUTOGRAD = 4242, 4300
ROWS = {
    "StringIds": [
        (1, "void softmax_warp_forward<float>(float *)"),
        (2, "softmax_warp_forward"),
        (4, "nvjet_tst_128x8_64x12_4x1_v_bz_TNT"),
        (5, "train_step"),
    ],
    "CUPTI_ACTIVITY_KIND_KERNEL": [(5000, 6500, 7, 1, 1, 2), (6500, 8500, 7, 2, 4, 4), (9900, 9950, 9, 3, 1, 2)],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [
        *((1200, 1210, MAIN, 1), (4500, 4510, AUTOGRAD, 2), (9000, 9001, MAIN, 3), (100, 110, MAIN, None))
    ],
    "NVTX_EVENTS": [
        (0, 8000, 59, None, MAIN, 5),  # a registered string
        (1000, 3000, 59, "softmax", MAIN, None),
        (4000, None, 59, "backward", MAIN, None),  # cut off by the capture's end
        (1500, 1600, 34, "a mark", MAIN, None),
    ],
}


def make(path, more=""):
    with closing(sqlite3.connect(path)) as database:
        database.executescript(SCHEMA)
        for table, rows in ROWS.items():
            database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        database.executescript(more)
        database.commit()
    return path


@pytest.fixture
def export(tmp_path):
    return make(tmp_path / "capture.sqlite")


def test_kernels_have_their_full_name_times_and_the_push_pop_range_that_launched_them(export):
    trace = read_export(export)
    events = trace.events.set_index("correlation")
    assert trace.profiler == "nsys"
    assert events.loc[1, "name"] == "void softmax_warp_forward<float>(float *)"
    assert list(events.loc[1, ["start_us", "duration_us", "stream"]]) == [5.0, 1.5, 7]
    assert dict(events["path"]) == {1: "train_step/softmax", 2: "train_step/backward", 3: ""}
    assert dict(events["category"]) == {1: "softmax", 2: "matmul", 3: "softmax"}
    ranges = trace.ranges.set_index("path")
    assert set(ranges.index) == {"train_step", "train_step/softmax", "train_step/backward"}  # no marks
    assert ranges.loc["train_step/backward", "duration_us"] == 4.0  # it ends with the capture


def test_the_first_of_two_calls_with_the_same_correlation_id_is_the_launch(tmp_path):
    after_softmax = f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (3500, 3510, {MAIN}, 1);"
    events = read_export(make(tmp_path / "capture.sqlite", after_softmax)).events
    assert list(events.loc[events["correlation"] == 1, "path"]) == ["train_step/softmax"]


def test_copies_and_fills_if_any_are_device_work_too(tmp_path):
    trace = read_export(make(tmp_path / "with_copies.sqlite", COPIES))
    copies = trace.events[trace.events["category"] == "copy"]
    assert list(copies["name"]) == ["[CUDA memcpy Device-to-Device]", "[CUDA memcpy Device-to-Host]", "[CUDA memset]"]
    assert len(trace.events) == 6


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *((length, ".+") for length in (0, 100, 9000)),
        (b"These are notes. " * 100, "file is not a database$"),
        (None, "unable to open"),
    ],
)
def test_a_missing_or_damaged_export_gives_a_one_line_error_and_is_not_created(export, content, said):
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
