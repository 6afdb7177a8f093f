import json

import pytest

from pipeline import cli
from pipeline.cells.disk import DISK_FULL
from pipeline.cells.failed import MOST_CHARACTERS, failures, how_it_ended
from pipeline.cells.freshness import CurrentSetup, has_changed_code, why_stale
from pipeline.cells.record import read_record
from pipeline.cells.tabulate import cell_table
from pipeline.registry import stages
from pipeline.stages.profile.cell import Cell, Settings


@pytest.mark.parametrize(
    ("log", "code", "reason"),
    [
        (b"Traceback (most recent call last):\n  File\nKeyError: 'a bug'\n\n", 1, "KeyError: 'a bug'"),
        (b"torch.AcceleratorError: CUDA\nmore of it\n[W] destroyed late\n", 1, "torch.AcceleratorError: CUDA"),
        (b"pipeline: cannot write cell.json: Too large\n", 2, "pipeline: cannot write cell.json: Too large"),
        (b"", 1, "exit code 1, nothing in its log"),
        (b"\x1b[31mred\xff\n", 1, "\\x1b[31mred\ufffd"),
        (b"x" * 100_000 + b"\n", 1, "x" * (MOST_CHARACTERS - 1) + "\u2026"),
        (b"RuntimeError: before\n", 137, "ended by SIGKILL"),
        (None, 1, "cannot read its log: No such file or directory"),
    ],
)
def test_a_failure_is_described_by_its_signal_or_the_end_of_its_log(tmp_path, log, code, reason):
    if log is not None:
        (tmp_path / "cell.log").write_bytes(log)
    assert how_it_ended(tmp_path / "cell.log", code) == reason


@pytest.fixture
def failed_path(tmp_path):
    path = tmp_path / "cell.json"
    words = ["137", "profile", "--log", "a.log", "--out", str(path), "--files", str(tmp_path / "files")]
    assert cli.run(["failed", *words], "ordinary", 0.0) == 0
    assert (tmp_path / "files").is_dir()
    return path


def test_a_failed_record_has_rows_and_its_command_and_is_always_stale(failed_path):
    record = read_record(failed_path, stages())
    assert record["rows"] == [{**key, "status": "failed", "reason": "ended by SIGKILL"} for key in Cell().row_keys()]
    assert record["command"].startswith("python -m pipeline measure profile ")
    table = cell_table([failed_path], stages())
    assert ",failed,ended by SIGKILL," in table
    assert table.rstrip().endswith(",a.log")
    present = CurrentSetup(record["machine"]["software"], 0)
    assert why_stale(record, Settings(), Cell().gpus, present) == "failed before"
    assert not has_changed_code(record)


def test_failures_lists_only_existing_records_of_failed_cells(failed_path, tmp_path):
    sound = json.loads(failed_path.read_text())
    del sound["log"]
    (tmp_path / "sound.json").write_text(json.dumps(sound))
    (line,) = failures([tmp_path / "sound.json", failed_path, tmp_path / "none.json"], stages())
    assert line.partition(" ")[0] == "profile"
    assert line.endswith(": ended by SIGKILL (a.log)")


def test_a_full_disk_leaves_no_record_and_passes_on_its_exit_code(tmp_path, capsys):
    words = ["failed", str(DISK_FULL), "timing", "--log", "a.log", "--out", str(tmp_path / "cell.json")]
    assert cli.run(words, "ordinary", 0.0) == DISK_FULL
    assert "the disk is full" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
