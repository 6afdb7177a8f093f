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


def test_a_lock_is_exclusive_names_its_holder_and_is_freed_by_its_death(start):
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


def test_a_lock_is_held_until_released_and_not_kept_by_forked_children(start):
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
    assert os.waitpid(child, os.WNOHANG) == (0, 0)  # still alive
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_lock_files_are_open_to_all_users_whatever_umask_and_tmpdir_are(folder, monkeypatch):
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


def test_a_lock_file_deleted_while_being_locked_does_not_count(folder, monkeypatch):
    flock = locks.fcntl.flock

    def flock_and_lose(descriptor, operation):
        flock(descriptor, operation)
        (folder / "host.lock").unlink()

    with monkeypatch.context() as patch:
        patch.setattr(locks.fcntl, "flock", flock_and_lose)
        assert not locks.try_lock("host")
    assert locks.try_lock("host")


@pytest.mark.parametrize(
    ("create", "why"),
    [
        (lambda path, elsewhere: path.symlink_to(elsewhere), "it is a symbolic link"),
        (lambda path, _: path.mkdir(), "Is a directory"),
        (lambda path, _: os.mkfifo(path), "it must be a plain file without hard links"),
        (lambda path, elsewhere: path.hardlink_to(elsewhere), "it must be a plain file without hard links"),
    ],
)
def test_anything_but_a_plain_file_as_a_lock_is_refused_and_left_alone(folder, tmp_path, create, why):
    def all_files():
        return sorted((path.name, path.lstat().st_size) for path in tmp_path.rglob("*"))

    (tmp_path / "elsewhere").write_text("of somebody")
    create(locks.check_folder() / "host.lock", tmp_path / "elsewhere")
    before = all_files()
    for function in (locks.try_lock, locks.holder):
        assert complaint(function, "host").startswith(f"cannot lock {folder}/host.lock: {why}; ")
    assert all_files() == before


def folder_of_mode(mode):
    return lambda path: (path.mkdir(), path.chmod(mode))


@pytest.mark.parametrize(
    ("create", "why"),
    [
        (folder_of_mode(0o777), "its mode must be 1777, got 777"),
        (folder_of_mode(0o1755), "its mode must be 1777, got 1755"),
        (lambda path: path.symlink_to("/tmp"), "it is a symbolic link"),
        (Path.touch, "it must be a folder"),
        (lambda path: path.parent.rmdir(), "No such file or directory"),
    ],
)
def test_a_folder_that_users_cannot_share_safely_is_refused(monkeypatch, tmp_path, create, why):
    place = tmp_path / "parent/locks"
    place.parent.mkdir()
    create(place)
    monkeypatch.setenv(locks.FOLDER_VARIABLE, str(place))
    message = f"cannot lock {place}: {why}; fix that, or set PIPELINE_LOCKS to another folder"
    assert complaint(locks.check_folder) == complaint(locks.try_lock, "host") == message


@pytest.mark.parametrize("folder_name", ["", "./locks"])
def test_a_relative_folder_is_refused(monkeypatch, folder_name):
    monkeypatch.setenv(locks.FOLDER_VARIABLE, folder_name)
    assert complaint(locks.check_folder) == f"PIPELINE_LOCKS must be an absolute path, got '{folder_name}'"


def test_what_another_user_wrote_into_a_lock_cannot_control_the_terminal(folder):
    locks.check_folder()
    (folder / "host.lock").write_bytes(b"\x1b[2Jcleared\n\xff" + b"x" * 5000)
    assert locks.holder("host").startswith("[2Jcleared�xxx")
    assert len(locks.holder("host")) <= locks.LONGEST_TEXT


@pytest.mark.parametrize(("seconds", "announced"), [(0, 0), (2, 0), (9, 1)])
def test_only_a_long_wait_is_announced_and_only_once(monkeypatch, capsys, seconds, announced):
    slept = []  # a second each
    monkeypatch.setattr(locks, "time", SimpleNamespace(monotonic=lambda: 100.0 + len(slept), sleep=slept.append))
    attempts = iter([None] * seconds + ["taken"])
    assert locks.wait_for(lambda: next(attempts), lambda: "waiting") == ("taken", seconds)
    assert capsys.readouterr().err == "waiting\n" * announced
