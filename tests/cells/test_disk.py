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
from pipeline.cells.disk import AtomicFile, DiskFull, prepare_files_folder, reserve_record, write_text

from ..complaints import complaint


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def contents(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def raising(number):
    return Mock(side_effect=OSError(number, os.strerror(number)))


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_only_the_written_file_remains_with_permissions_by_the_umask(tmp_path, umask, mode):
    umask = os.umask(umask)
    try:
        for content in ("first", "second é \udcff"):
            with AtomicFile(tmp_path / "deep/cell.json", 2**20) as file:
                file.write(content)
    finally:
        os.umask(umask)
    assert contents(tmp_path) == ["deep", "deep/cell.json"]
    assert (tmp_path / "deep/cell.json").read_text() == r"second é \udcff"
    assert stat.S_IMODE((tmp_path / "deep/cell.json").stat().st_mode) == mode


# Prints a line whenever it has reserved space and is about to write.
WRITER = """
import sys, time
from pathlib import Path
from pipeline.cells.disk import AtomicFile
while True:
    with AtomicFile(Path(sys.argv[1]), 2**20) as file:
        print(flush=True)
        time.sleep(float(sys.argv[2]))
        file.write('{"schema_version": 1, "rows": [' + "1, " * 200000 + "1]}")
"""


@pytest.mark.parametrize(("pause_s", "writings"), [(600, 1), (0, 1), (0, 4)])
def test_a_killed_writer_leaves_a_whole_file_and_the_next_writer_cleans_up(tmp_path, pause_s, writings):
    path = tmp_path / "cell.json"
    write_text(path, "{}")
    with subprocess.Popen([sys.executable, "-c", WRITER, path, str(pause_s)], stdout=subprocess.PIPE) as writer:
        for _ in range(writings):
            writer.stdout.readline()
        writer.kill()
    assert isinstance(json.loads(path.read_text()), dict)
    write_text(path, "{}")  # takes over the part file
    assert contents(tmp_path) == ["cell.json"]


@pytest.mark.parametrize("call", ["posix_fallocate", "fsync"])
def test_a_full_disk_is_reported_in_one_line_and_keeps_the_old_file(tmp_path, monkeypatch, call):
    path = tmp_path / "table.csv"
    write_text(path, "old")
    monkeypatch.setattr(os, call, raising(errno.ENOSPC), raising=False)
    with pytest.raises(DiskFull, match=f"^cannot write {path}: No space left on device$"), AtomicFile(path, 1) as it:
        it.write("new")
    assert path.read_text() == "old"
    assert contents(tmp_path) == ["table.csv"]


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_without_preallocation_zeros_reserve_the_space(tmp_path, monkeypatch, number):
    monkeypatch.setattr(os, "posix_fallocate", raising(number), raising=False)
    with AtomicFile(tmp_path / "cell.json", 5000) as file:
        assert (tmp_path / ".cell.json.part").read_bytes() == bytes(5000)
        file.write("short")
    assert (tmp_path / "cell.json").read_text() == "short"


def test_a_record_path_must_be_a_writable_json_file(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.json").mkdir()
    for place in ("file/cell.json", "/proc/nowhere/cell.json", "/proc/cell.json", "x" * 300 + ".json"):
        assert complaint(reserve_record, place).startswith(f"cannot write {place}: ")
    for place in ("", ".", "cell", "cell.txt", ".json", "folder.json", "folder.json/"):
        assert complaint(reserve_record, place) == f"--out must be a file that ends in .json, got '{place}'"


def test_a_record_is_written_even_if_the_disk_fills_meanwhile(small_disk):
    small = small_disk(size_mib=6)
    content = "0123456789" * 100_000
    with reserve_record(small.folder / "cell.json") as file:
        small.fill()
        file.write(content)
    assert (small.folder / "cell.json").read_text() == content
    with pytest.raises(DiskFull, match="No space left on device"):
        reserve_record(small.folder / "another.json")


def test_a_full_disk_error_says_how_much_is_free_and_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=disk.NEEDED_BYTES))
    disk.check_free(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=5 * 2**20))
    with pytest.raises(DiskFull, match=r"^cell.files/ is on a full disk: 5 MiB free, 100 MiB needed$"):
        prepare_files_folder(None, Path("cell.json"))


def test_only_lack_of_space_is_reported_as_a_full_disk():
    message = r"^cannot write kernels\.csv: No space left on device$"
    with pytest.raises(DiskFull, match=message), disk.raising_disk_full():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "kernels.csv")
    with pytest.raises(FileNotFoundError), disk.raising_disk_full():
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), "kernels.csv")


def test_files_are_found_through_links_without_following_loops(tmp_path):
    folder, other = tmp_path / "folder", tmp_path / "other"
    for name in (folder / "inner/a.json", other / "b.json", other / "c.csv"):
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_text("")
    (folder / "inner/other").symlink_to(other)
    (folder / "inner/above").symlink_to(folder)
    (folder / "d.json").symlink_to(other / "b.json")
    found = disk.files_below(folder, ".json")
    assert [str(path.relative_to(folder)) for path in found] == ["d.json", "inner/a.json", "inner/other/b.json"]


@pytest.mark.parametrize("requested", [None, "here/chosen"])
def test_an_earlier_runs_files_are_deleted_even_after_folder_and_record_moved(requested, tmp_path):
    folder = prepare_files_folder(requested, Path("here/cell.json"))
    (folder / "deep").mkdir()
    (folder / "deep/left_over").write_text("from the earlier run")
    (folder / "link").symlink_to(tmp_path)
    os.rename("here", "there")
    again = prepare_files_folder(requested and requested.replace("here", "there"), Path("there/cell.json"))
    assert contents(again) == [".record"]
    assert tmp_path.exists()


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        *((place, f"must not be a folder that holds the record, got '{place}'") for place in (".", "..", "deep")),
        ("deep/a.json", "must not be a folder that holds the record, got 'deep/a.json'"),
        *((place, f"--files must be a folder, got '{place}'") for place in ("", "file")),
        ("file/deep", "--files 'file/deep' cannot be written: Not a directory"),
    ],
)
def test_a_place_for_files_that_is_no_folder_or_holds_the_record_is_refused(requested, message, tmp_path):
    (tmp_path / "file").write_text("")
    assert complaint(prepare_files_folder, requested, Path("deep/a.json")).endswith(message)


@pytest.mark.parametrize("requested", [None, "cell.files", "link", "others"])
def test_a_folder_with_foreign_files_is_refused_and_kept(requested, tmp_path):
    (prepare_files_folder("others", Path("a.json")) / "capture").write_text("")
    (tmp_path / "cell.files").mkdir()
    (tmp_path / "cell.files/thesis").write_text("the only copy")
    (tmp_path / "link").symlink_to("cell.files")
    assert "has files not from an earlier run for cell.json" in complaint(
        prepare_files_folder, requested, Path("cell.json")
    )
    assert contents(tmp_path / "cell.files") == ["thesis"]
    assert "capture" in contents(tmp_path / "others")
