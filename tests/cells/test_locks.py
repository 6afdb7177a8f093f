import os
import signal
import stat
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.cells import locks

from ..complaints import complaint

HOLDER = """
import sys, time
from pipeline.cells import locks
while not locks.try_lock("host", shared="shared" in sys.argv):
    time.sleep(0.01)
locks.sign("host", "measure something")
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def folder(own_locks):
    return own_locks


@pytest.fixture
def start(start_python):
    return partial(start_python, HOLDER)


def test_a_lock_is_one_process_s_alone_says_whose_and_goes_to_the_next_when_that_is_killed(start):
    holder = start()
    assert holder.stdout.readline() == "held\n"
    assert not locks.try_lock("host")
    assert not locks.try_lock("host", shared=True)
    assert locks.holder("host") == f"process {holder.pid} (measure something)"
    second = start("shared")
    holder.send_signal(signal.SIGKILL)
    assert second.stdout.readline() == "held\n"
    assert locks.holder("host").startswith(f"process {second.pid} ")
    assert locks.try_lock("host", shared=True)


def test_a_process_has_what_it_holds_until_it_gives_it_back_and_a_child_that_outlives_it_keeps_none(start):
    assert locks.try_lock("host")
    assert locks.try_lock("host")
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    other = start()
    locks.release("host")
    assert other.stdout.readline() == "held\n"
    assert not locks.try_lock("host")
    assert os.waitpid(child, os.WNOHANG) == (0, 0)  # it lives on
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_folder_and_files_are_every_user_s_whatever_the_umask_and_the_folder_the_machine_s(folder, monkeypatch):
    umask = os.umask(0o077)
    try:
        locks.try_lock("host")
    finally:
        os.umask(umask)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE((folder / "host.lock").stat().st_mode) == 0o666
    monkeypatch.delenv(locks.FOLDER_VARIABLE)
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    assert locks.check_folder() == Path("/tmp/llm-systems-pipeline-locks")


def test_a_file_taken_away_while_it_is_locked_does_not_count(folder, monkeypatch):
    flock = locks.fcntl.flock

    def flock_and_lose(descriptor, operation):
        flock(descriptor, operation)
        (folder / "host.lock").unlink()

    with monkeypatch.context() as patch:
        patch.setattr(locks.fcntl, "flock", flock_and_lose)
        assert not locks.try_lock("host")
    assert locks.try_lock("host")


@pytest.mark.parametrize(
    ("put", "why"),
    [
        (lambda path, elsewhere: path.symlink_to(elsewhere), "it is a symbolic link"),
        (lambda path, _: path.mkdir(), "Is a directory"),
        (lambda path, _: os.mkfifo(path), "it must be a plain file with one name"),
        (lambda path, elsewhere: path.hardlink_to(elsewhere), "it must be a plain file with one name"),
    ],
)
def test_what_is_no_file_in_a_lock_s_place_is_one_line_and_left_alone(folder, tmp_path, put, why):
    def all_files():
        return sorted((path.name, path.lstat().st_size) for path in tmp_path.rglob("*"))

    (tmp_path / "elsewhere").write_text("of somebody")
    put(locks.check_folder() / "host.lock", tmp_path / "elsewhere")
    before = all_files()
    for function in (locks.try_lock, locks.holder):
        assert complaint(function, "host").startswith(f"cannot lock {folder}/host.lock: {why}; ")
    assert all_files() == before


def folder_of_mode(mode):
    return lambda path: (path.mkdir(), path.chmod(mode))


@pytest.mark.parametrize(
    ("put", "why"),
    [
        (folder_of_mode(0o777), "its mode must be 1777, got 777"),
        (folder_of_mode(0o1755), "its mode must be 1777, got 1755"),
        (lambda path: path.symlink_to("/tmp"), "it is a symbolic link"),
        (Path.touch, "it must be a folder"),
        (lambda path: path.parent.rmdir(), "No such file or directory"),
    ],
)
def test_a_folder_that_users_cannot_share_safely_is_one_line(monkeypatch, tmp_path, put, why):
    place = tmp_path / "parent/locks"
    place.parent.mkdir()
    put(place)
    monkeypatch.setenv(locks.FOLDER_VARIABLE, str(place))
    said = f"cannot lock {place}: {why}; put that right, or set PIPELINE_LOCKS to another folder"
    assert complaint(locks.check_folder) == complaint(locks.try_lock, "host") == said


@pytest.mark.parametrize("asked", ["", "./locks"])
def test_a_folder_that_depends_on_the_working_directory_is_refused(monkeypatch, asked):
    monkeypatch.setenv(locks.FOLDER_VARIABLE, asked)
    assert complaint(locks.check_folder) == f"PIPELINE_LOCKS must be an absolute path, got '{asked}'"


def test_what_another_user_wrote_into_a_lock_cannot_steer_the_terminal(folder):
    locks.check_folder()
    (folder / "host.lock").write_bytes(b"\x1b[2Jcleared\n\xff" + b"x" * 5000)
    assert locks.holder("host").startswith("[2Jcleared�xxx")
    assert len(locks.holder("host")) <= locks.LONGEST_TEXT


@pytest.mark.parametrize(("seconds", "announced"), [(0, 0), (2, 0), (9, 1)])
def test_only_a_long_wait_is_announced_and_once(monkeypatch, capsys, seconds, announced):
    slept = []  # a second each
    monkeypatch.setattr(locks, "time", SimpleNamespace(monotonic=lambda: 100.0 + len(slept), sleep=slept.append))
    attempts = iter([None] * seconds + ["taken"])
    assert locks.wait_for(lambda: next(attempts), lambda: "waiting") == ("taken", seconds)
    assert capsys.readouterr().err == "waiting\n" * announced
