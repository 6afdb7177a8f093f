import os
import shutil
from types import SimpleNamespace

import pytest

from pipeline.cells.disk import RECORD_ROOM_BYTES, DiskFull, files_place, record_place
from pipeline.errors import UserError


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def record_path(asked):
    with record_place(asked) as record:
        return record.path


def contents(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("asked", ["", ".", "..", "cell", "cell.txt", ".json", "folder.json", "folder.json/"])
def test_a_record_is_a_json_file(asked, tmp_path):
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(UserError, match=r"^--out must be a file that ends in \.json, got '.*'$"):
        record_place(asked)


@pytest.mark.parametrize("asked", ["file/cell.json", "/proc/nowhere/cell.json", "/proc/cell.json", "x" * 300 + ".json"])
def test_a_place_that_takes_no_record_is_told_beforehand(asked, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^cannot write \S+: ") as raised:
        record_place(asked)
    assert "\n" not in str(raised.value)


def test_trying_a_place_leaves_its_folder_and_an_earlier_record(tmp_path):
    (tmp_path / "earlier.json").write_text("earlier")
    record_path("earlier.json")
    record_path("deep/er/cell.json")
    assert contents(tmp_path) == ["deep", "deep/er", "earlier.json"]
    assert (tmp_path / "earlier.json").read_text() == "earlier"


def test_a_record_has_its_room_on_the_disk_before_it_is_measured(monkeypatch):
    taken = []
    monkeypatch.setattr(os, "posix_fallocate", lambda _file, start, size: taken.append((start, size)), raising=False)
    record_path("cell.json")
    assert taken == [(0, RECORD_ROOM_BYTES)]


def test_files_are_kept_only_where_there_is_room_for_them(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=20 * 2**20))
    with pytest.raises(DiskFull, match=r"^cell\.files/ is on a full disk: 20 MiB free, 100 MiB needed$"):
        files_place(None, record_path("cell.json"))


@pytest.mark.parametrize("asked", [None, "here/chosen"])
def test_an_earlier_runs_files_make_room_for_the_next_ones_also_where_both_were_moved(asked, tmp_path):
    folder = files_place(asked, record_path("here/cell.json"))
    (folder / "deep").mkdir()
    (folder / "deep/left_over").write_text("from the earlier run")
    (folder / "link").symlink_to(tmp_path)
    os.rename("here", "there")
    again = files_place(asked and asked.replace("here", "there"), record_path("there/cell.json"))
    assert contents(again) == [".record"]
    assert tmp_path.exists()


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        *((place, "where the record goes too") for place in (".", "..", "deep", "deep/cell.json")),
        *((place, f"^--files must be a folder, got '{place}'$") for place in ("", "file")),
        ("file/deep", "^--files is 'file/deep', which cannot be written: Not a directory$"),
    ],
)
def test_what_is_no_folder_or_would_hold_the_record_is_refused_for_it_is_emptied(asked, complaint, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=complaint):
        files_place(asked, record_path("deep/cell.json"))


@pytest.mark.parametrize("asked", [None, "cell.files", "link", "others"])
def test_a_folder_with_what_no_earlier_run_left_or_one_of_another_record_is_refused_and_kept(asked, tmp_path):
    (files_place("others", record_path("a.json")) / "capture").write_text("")
    (tmp_path / "cell.files").mkdir()
    (tmp_path / "cell.files/thesis").write_text("the only copy")
    (tmp_path / "link").symlink_to("cell.files")
    with pytest.raises(UserError, match=r"holds what no earlier run for cell\.json left"):
        files_place(asked, record_path("cell.json"))
    assert contents(tmp_path / "cell.files") == ["thesis"]
    assert "capture" in contents(tmp_path / "others")
