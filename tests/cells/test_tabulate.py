import csv
import io
import json
from dataclasses import asdict

import pytest

from pipeline.cells import tabulate
from pipeline.cells.disk import AtomicFile
from pipeline.cells.record import write_record
from pipeline.cells.timed_rows import doubt_about_median
from pipeline.registry import stages

from ..complaints import complaint
from ..records import CPU, attention_row, failed_row, record, timed_row

SAMPLES_MS = [1.0, 2.0, 3.2512345]
SAMPLES_OF = {"ok": (1.99, 2.0, 2.01), "unstable": (1.0, 2.0, 3.0)}
WHY_UNSTABLE = doubt_about_median(SAMPLES_OF["unstable"], [], 0.05)


def table(kind, *records):
    """Return the lines of a table of rows or cells, text by column."""
    text = {"rows": tabulate.row_table, "cells": tabulate.cell_table}[kind](records, stages())
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def written_record(tmp_path):
    def write(name="cell", **parts):
        write_record(AtomicFile(tmp_path / f"{name}.json"), record(**parts))
        return tmp_path / f"{name}.json"

    return write


def test_a_table_row_has_its_cell_settings_machine_versions_and_any_values(written_record):
    both = written_record(rows=[timed_row(samples_ms=SAMPLES_MS), failed_row(phase="backward")])
    forward, backward = table("rows", both)
    assert list(forward) == [name for name in stages()["timing"].table_columns if name in forward]
    columns = ["size", "context_length", "setting_vocab_size", "phase", "machine", "torch"]
    assert [forward[name] for name in columns] == ["small", "256", "10000", "forward", "a CPU", "1.0"]
    assert json.loads(forward["samples_ms"]) == SAMPLES_MS
    # A setting does not stand in for a missing value.
    assert forward["setting_rel_error"] == backward["setting_rel_error"] == "0.005"
    assert float(forward["rel_error"]) != 0.005
    assert backward["status"] == "oom"
    assert backward["median_ms"] == backward["samples_ms"] == backward["rel_error"] == ""


def test_a_table_of_two_stages_is_refused(written_record):
    other = written_record(
        "other", stage="accounting", cell={}, settings={}, rows=[{"status": "skipped", "reason": "no"}]
    )
    message = "the records must be of one stage, got accounting and timing"
    assert complaint(table, "rows", written_record(), other) == message


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["ok", "oom", "skipped"], ("ok", "")),
        (["unstable", "skipped"], ("unstable", WHY_UNSTABLE)),
        (["skipped", "oom"], ("oom", "why oom")),
        (["ok", "unstable", "oom", "unstable"], ("unstable", f"2 of 3 values, the first: {WHY_UNSTABLE}")),
        (["unstable", "ok"], ("unstable", f"1 of 2 values: {WHY_UNSTABLE}")),
    ],
)
def test_a_cells_outcome_is_the_worst_of_its_rows_with_values(written_record, statuses, expected):
    phases = ("forward", "backward", "optimizer", "train_step")
    rows = [
        timed_row(phase, SAMPLES_OF[status]) if status in SAMPLES_OF else failed_row(status, f"why {status}", phase)
        for status, phase in zip(statuses, phases, strict=False)
    ]
    (line,) = table("cells", written_record(rows=rows))
    assert (line["status"], line["reason"]) == expected


@pytest.mark.parametrize(
    ("statuses", "clock", "expected"),
    [
        ({"triton": "ok", "tiled": "unstable"}, "device", "ok"),
        ({"triton": "unstable", "tiled": "ok"}, "device", "unstable"),
        ({"tiled": "unstable"}, "device", "unstable"),
        ({"triton": "oom", "tiled": "ok"}, "device", "ok"),
        ({"eager": "ok", "tiled": "unstable"}, "host", "unstable"),
    ],
)
def test_a_reference_decides_an_outcome_only_if_nothing_else_has_a_value(written_record, statuses, clock, expected):
    rows = [
        attention_row(impl, SAMPLES_OF[status], clock=clock)
        if status in SAMPLES_OF
        else failed_row(status) | {"impl": impl}
        for impl, status in statuses.items()
    ]
    flash = stages()["flash"]
    cell, settings = asdict(flash.cell_type()), asdict(flash.settings_type())
    (line,) = table("cells", written_record(stage="flash", cell=cell, settings=settings, rows=rows))
    assert line["status"] == expected


def test_a_table_of_cells_has_axes_times_host_and_gpus(written_record):
    host = {"cores": 2.0, "others_cores": None, "busy": False, "load_before": 0.25, "load_after": 0.5}
    gpus = {"gpus": [{"memory_bytes": 5}, {"memory_bytes": 6}], "gpus_taken": ["b", "a"]}
    line, described = table("cells", written_record(), written_record("told", host=host, machine=CPU | gpus))
    sizes = "size=small context_length=256 batch_size=4 warmup_steps=5"
    assert line["cell"] == f"precision=fp32 {sizes} repeat=1"
    assert [line[name] for name in ("start_up_s", "set_up_s", "measuring_s")] == ["3.0", "1.0", "4.0"]
    assert line["host_busy"] == line["host_load_before"] == line["gpu_memory_bytes"] == line["gpus"] == ""
    names = ("host_cores", "host_busy", "host_load_before", "host_load_after", "gpu_memory_bytes", "gpus")
    assert [described[name] for name in names] == ["2.0", "False", "0.25", "0.5", "5", "a b"]
    assert described["memory_bytes"] == str(CPU["memory_bytes"])


def test_text_that_a_spreadsheet_would_compute_is_quoted_but_numbers_are_not(written_record):
    for start in "=+-@":
        reason = f'{start}HYPERLINK("https://example.org")'
        path = written_record(rows=[failed_row(reason=reason)], command=f"{start}1")
        (row,), (cell,) = table("rows", path), table("cells", path)
        assert (row["reason"], cell["reason"], cell["command"]) == (f"'{reason}", f"'{reason}", f"'{start}1")
    assert tabulate._csv(["a"], [{"a": -1.5}]) == "a\n-1.5\n"
