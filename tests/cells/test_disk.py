import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from pipeline.cells import disk
from pipeline.cells.disk import DiskFull, WholeFile, files_place, record_place, write_text

from ..complaints import complaint


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def contents(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def raising(number):
    return Mock(side_effect=OSError(number, os.strerror(number)))


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_nothing_but_the_file_stays_in_its_place_with_the_rights_that_the_umask_leaves(tmp_path, umask, mode):
    umask = os.umask(umask)
    try:
        for content in ("first", "second é \udcff"):
            with WholeFile(tmp_path / "deep/cell.json", 2**20) as file:
                file.write(content)
    finally:
        os.umask(umask)
    assert contents(tmp_path) == ["deep", "deep/cell.json"]
    assert (tmp_path / "deep/cell.json").read_text() == r"second é \udcff"
    assert stat.S_IMODE((tmp_path / "deep/cell.json").stat().st_mode) == mode


# Says so when it has taken room, and whenever it writes.
WRITER = """
import sys, time
from pathlib import Path
from pipeline.cells.disk import WholeFile
while True:
    with WholeFile(Path(sys.argv[1]), 2**20) as file:
        print(flush=True)
        time.sleep(float(sys.argv[2]))
        file.write('{"schema_version": 1, "rows": [' + "1, " * 200000 + "1]}")
"""


@pytest.mark.parametrize(("pause_s", "writings"), [(600, 1), (0, 1), (0, 4)])
def test_a_writer_killed_at_any_moment_leaves_the_old_file_whole_and_nothing_that_the_next_does_not_take_over(
    tmp_path, pause_s, writings
):
    path = tmp_path / "cell.json"
    write_text(path, "{}")
    with subprocess.Popen([sys.executable, "-c", WRITER, path, str(pause_s)], stdout=subprocess.PIPE) as writer:
        for _ in range(writings):
            writer.stdout.readline()
        writer.kill()
    assert isinstance(json.loads(path.read_text()), dict)
    write_text(path, "{}")  # takes over what is left
    assert contents(tmp_path) == ["cell.json"]


@pytest.mark.parametrize("call", ["posix_fallocate", "fsync"])
def test_a_full_disk_is_one_line_and_keeps_what_was_there(tmp_path, monkeypatch, call):
    path = tmp_path / "table.csv"
    write_text(path, "old")
    monkeypatch.setattr(os, call, raising(errno.ENOSPC), raising=False)
    with pytest.raises(DiskFull, match=f"^cannot write {path}: No space left on device$"), WholeFile(path, 1) as it:
        it.write("new")
    assert path.read_text() == "old"
    assert contents(tmp_path) == ["table.csv"]


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_where_nothing_can_be_allocated_zeros_take_the_room(tmp_path, monkeypatch, number):
    monkeypatch.setattr(os, "posix_fallocate", raising(number), raising=False)
    with WholeFile(tmp_path / "cell.json", 5000) as file:
        assert (tmp_path / ".cell.json.part").read_bytes() == bytes(5000)
        file.write("short")
    assert (tmp_path / "cell.json").read_text() == "short"


def test_a_record_is_a_json_file_in_a_place_that_takes_one_else_it_is_one_line_beforehand(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.json").mkdir()
    for place in ("file/cell.json", "/proc/nowhere/cell.json", "/proc/cell.json", "x" * 300 + ".json"):
        assert complaint(record_place, place).startswith(f"cannot write {place}: ")
    for place in ("", ".", "cell", "cell.txt", ".json", "folder.json", "folder.json/"):
        assert complaint(record_place, place) == f"--out must be a file that ends in .json, got '{place}'"


def test_a_record_is_written_on_a_disk_that_fills_meanwhile(small_disk):
    small = small_disk(size_mib=6)
    content = "0123456789" * 100_000
    with record_place(small.folder / "cell.json") as file:
        small.fill()
        file.write(content)
    assert (small.folder / "cell.json").read_text() == content
    with pytest.raises(DiskFull, match="No space left on device"):
        record_place(small.folder / "another.json")


def test_too_little_room_is_told_with_what_is_free_and_what_is_needed(tmp_path, monkeypatch):
    disk.check_free(tmp_path, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=5 * 2**20))
    with pytest.raises(DiskFull, match=r"^cell.files/ is on a full disk: 5 MiB free, 100 MiB needed$"):
        files_place(None, Path("cell.json"))


def test_only_want_of_room_is_told_as_such():
    told = r"^cannot write kernels\.csv: No space left on device$"
    with pytest.raises(DiskFull, match=told), disk.naming_the_full_disk():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "kernels.csv")
    with pytest.raises(FileNotFoundError), disk.naming_the_full_disk():
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), "kernels.csv")


def test_files_are_found_through_links_and_a_link_to_a_folder_above_ends(tmp_path):
    folder, other = tmp_path / "folder", tmp_path / "other"
    for name in (folder / "inner/a.json", other / "b.json", other / "c.csv"):
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_text("")
    (folder / "inner/other").symlink_to(other)
    (folder / "inner/above").symlink_to(folder)
    (folder / "d.json").symlink_to(other / "b.json")
    found = disk.files_below(folder, ".json")
    assert [str(path.relative_to(folder)) for path in found] == ["d.json", "inner/a.json", "inner/other/b.json"]


@pytest.mark.parametrize("asked", [None, "here/chosen"])
def test_an_earlier_runs_files_make_room_for_the_next_ones_also_where_both_were_moved(asked, tmp_path):
    folder = files_place(asked, Path("here/cell.json"))
    (folder / "deep").mkdir()
    (folder / "deep/left_over").write_text("from the earlier run")
    (folder / "link").symlink_to(tmp_path)
    os.rename("here", "there")
    again = files_place(asked and asked.replace("here", "there"), Path("there/cell.json"))
    assert contents(again) == [".record"]
    assert tmp_path.exists()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        *((place, "record goes too: name a folder of its own") for place in (".", "..", "deep", "deep/a.json")),
        *((place, f"--files must be a folder, got '{place}'") for place in ("", "file")),
        ("file/deep", "--files is 'file/deep', which cannot be written: Not a directory"),
    ],
)
def test_what_is_no_folder_or_would_hold_the_record_is_refused_for_it_is_emptied(asked, said, tmp_path):
    (tmp_path / "file").write_text("")
    assert complaint(files_place, asked, Path("deep/a.json")).endswith(said)


@pytest.mark.parametrize("asked", [None, "cell.files", "link", "others"])
def test_a_folder_with_what_no_earlier_run_left_or_one_of_another_record_is_refused_and_kept(asked, tmp_path):
    (files_place("others", Path("a.json")) / "capture").write_text("")
    (tmp_path / "cell.files").mkdir()
    (tmp_path / "cell.files/thesis").write_text("the only copy")
    (tmp_path / "link").symlink_to("cell.files")
    assert "holds what no earlier run for cell.json left" in complaint(files_place, asked, Path("cell.json"))
    assert contents(tmp_path / "cell.files") == ["thesis"]
    assert "capture" in contents(tmp_path / "others")
