import json
import subprocess
import sys
import time

import pytest

from pipeline.cells.record import SCHEMA_VERSION, read_record, write_record, write_text
from pipeline.errors import UserError

RECORD = {"schema_version": SCHEMA_VERSION, "rows": []}


def test_a_record_is_read_back_as_written(tmp_path):
    write_record(tmp_path / "deep/cell.json", RECORD)
    assert read_record(tmp_path / "deep/cell.json") == RECORD


def test_nothing_but_the_record_stays_beside_it(tmp_path):
    write_record(tmp_path / "cell.json", RECORD)
    write_record(tmp_path / "cell.json", RECORD)
    assert [path.name for path in tmp_path.iterdir()] == ["cell.json"]


def test_a_figure_that_is_no_number_is_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_record(tmp_path / "cell.json", {**RECORD, "rows": [{"median_ms": float("nan")}]})
    assert not (tmp_path / "cell.json").exists()


def test_a_writer_killed_at_any_moment_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "cell.json"
    write_record(path, RECORD)
    endless = (
        "import sys; from pathlib import Path; from pipeline.cells.record import write_text\n"
        "while True: write_text(Path(sys.argv[1]), '{\"schema_version\": 1, \"rows\": [' + '1, ' * 200000 + '1]}')"
    )
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", endless, str(path)])
        time.sleep(0.4)
        writer.kill()
        writer.wait()
        assert isinstance(json.loads(path.read_text()), dict)


def test_a_full_disk_is_one_line_and_keeps_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    write_text(path, "old")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match=r"cannot write .*table.csv: No space left on device"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write_record(tmp_path / "file/cell.json", RECORD)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"schema_version": 1, "ro', "is no record"),
        ("[]", "it has no schema_version"),
        ('{"schema_version": 99}', "has schema_version 99"),
    ],
)
def test_a_damaged_or_foreign_record_is_named(tmp_path, content, complaint):
    (tmp_path / "cell.json").write_text(content)
    with pytest.raises(UserError, match=complaint):
        read_record(tmp_path / "cell.json")
