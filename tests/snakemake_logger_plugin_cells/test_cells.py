import json
from logging import makeLogRecord
from types import SimpleNamespace

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from pipeline.cells.record import SCHEMA_VERSION, SOFTWARE
from snakemake_logger_plugin_cells import LogHandler

RECORD = {
    "schema_version": SCHEMA_VERSION,
    "stage": "timing",
    "cell": {},
    "settings": {},
    "rows": [{"status": "ok"}],
    "machine": {"kind": "CPU", "software": dict.fromkeys(SOFTWARE, "1.0")},
    "code": {"digest": "abc"},
    "command": "python -m pipeline measure timing",
    "process": "worker",
    "started_at": "2026-01-01T00:00:00Z",
    "seconds": {},
}
HOST = {"cores": 2.0, "others_cores": 1.73, "busy": True, "load_before": 2.0, "load_after": 2.0}


@pytest.fixture
def finish(tmp_path):
    """Let a cell start and end that leaves this record, or none, and a folder of files."""
    handler = LogHandler.__new__(LogHandler)
    handler.common_settings = SimpleNamespace(dryrun=False)
    handler.__post_init__()

    def finish_one(record):
        (tmp_path / "files").mkdir()
        if record is not None:
            (tmp_path / "cell.json").write_text(json.dumps(record))
        output = [str(tmp_path / "cell.json"), str(tmp_path / "files")]
        job = {"jobid": 3, "rule_name": "measure_timing", "output": output}
        handler.emit(makeLogRecord({"event": LogEvent.JOB_INFO, **job}))
        handler.emit(makeLogRecord({"event": LogEvent.JOB_FINISHED, "job_id": 3}))
        return handler

    return finish_one


def test_a_cell_measured_on_a_busy_host_is_told_in_the_terminal(finish, tmp_path, capsys):
    assert finish({**RECORD, "host": HOST}).done == 1
    told = f"[measured on a busy host: other processes used 1.7 of 2 cores, see {tmp_path}/cell.json]"
    assert capsys.readouterr().err.splitlines() == ["[0 of 0 cells done]", told]


@pytest.mark.parametrize(
    "record", [RECORD, {**RECORD, "host": {**HOST, "busy": False}}, {**RECORD, "host": {"busy": True}}, {}, None]
)
def test_nothing_is_told_of_a_quiet_host_or_a_record_that_does_not_say(finish, record, capsys):
    assert finish(record).done == 1
    assert capsys.readouterr().err.splitlines() == ["[0 of 0 cells done]"]
