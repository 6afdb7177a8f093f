import json

import pytest

from pipeline.cells.disk import WholeFile
from pipeline.cells.record import SCHEMA_VERSION, write_record
from pipeline.cells.tabulate import cell_table, row_table

SOFTWARE = {"python": "3.12.3", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "driver": "580"}
ROWS = [
    {"pass": "forward", "status": "ok", "median_ms": 2.0, "samples_ms": [1.0, 2.0, 3.2512345]},
    {"pass": "backward", "status": "oom", "reason": "CUDA out of memory"},
]


@pytest.fixture
def record_path(tmp_path):
    record = {
        "schema_version": SCHEMA_VERSION,
        "stage": "timing",
        "cell": {"size": "xl", "context_length": 512, "is_causal": True},
        "settings": {"batch_size": 4},
        "rows": ROWS,
        "machine": {"kind": "NVIDIA H200", "software": SOFTWARE},
        "code": {"digest": "abc", "commit": "1234567"},
        "command": "python -m pipeline measure timing size=xl",
        "process": "worker",
        "started_at": "2026-01-01T00:00:00Z",
        "seconds": {"start_up": 3.0, "set_up": 1.0, "measuring": 4.0},
    }
    write_record(WholeFile(tmp_path / "cell.json"), record)
    return tmp_path / "cell.json"


def test_a_row_carries_its_cell_settings_machine_and_versions(record_path):
    forward = row_table([record_path]).iloc[0]
    assert forward[["size", "context_length", "batch_size", "pass", "machine", "torch"]].tolist() == [
        "xl",
        512,
        4,
        "forward",
        "NVIDIA H200",
        "2.11.0",
    ]


def test_raw_samples_stay_in_order_to_six_digits(record_path):
    assert row_table([record_path]).iloc[0]["samples_ms"] == "1 2 3.25123"


def test_out_of_memory_is_a_row_without_a_figure(record_path):
    backward = row_table([record_path]).iloc[1]
    assert backward["status"] == "oom"
    assert backward[["median_ms", "samples_ms"]].isna().all()


def test_a_table_without_outcomes_has_a_reason_all_the_same(record_path, tmp_path):
    record = json.loads(record_path.read_text())
    record["rows"] = ROWS[:1]
    write_record(WholeFile(tmp_path / "ok.json"), record)
    assert row_table([tmp_path / "ok.json"])["reason"].isna().all()


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["ok", "oom", "skipped"], ("ok", "why ok")),
        (["unstable", "skipped"], ("unstable", "why unstable")),
        (["skipped", "oom"], ("oom", "why oom")),
        (["skipped"], ("skipped", "why skipped")),
        (["ok", "unstable", "oom", "unstable"], ("unstable", "2 of 3 figures, the first: why unstable")),
        (["unstable", "ok"], ("unstable", "1 of 2 figures: why unstable")),
    ],
)
def test_a_cell_is_as_its_least_fortunate_row_with_a_figure(record_path, statuses, expected):
    record = json.loads(record_path.read_text())
    record["rows"] = [{"status": status, "reason": f"why {status}"} for status in statuses]
    write_record(WholeFile(record_path), record)
    line = cell_table([record_path]).iloc[0]
    assert (line["status"], line["reason"]) == expected


def test_a_cell_carries_its_axes_as_a_command_takes_them_and_its_time(record_path):
    line = cell_table([record_path]).iloc[0]
    assert line["cell"] == "size=xl context_length=512 is_causal=true"
    assert line[["start_up_s", "set_up_s", "measuring_s"]].tolist() == [3.0, 1.0, 4.0]


def test_a_cell_carries_how_busy_the_host_was_where_its_record_tells(record_path, tmp_path):
    record = json.loads(record_path.read_text())
    host = {"cores": 2.0, "others_cores": None, "busy": False, "load_before": 0.25, "load_after": 0.5}
    write_record(WholeFile(tmp_path / "told.json"), {**record, "host": host})
    untold, told = (line for _, line in cell_table([record_path, tmp_path / "told.json"]).iterrows())
    assert untold[["host_busy", "host_load_before"]].isna().all()
    assert told[["host_cores", "host_busy", "host_load_before", "host_load_after"]].tolist() == [2.0, False, 0.25, 0.5]
