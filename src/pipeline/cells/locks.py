"""Locks on GPUs and on the host, shared by all users of the machine; the kernel frees them when their process dies.

Every user may write to the lock folder (mode 1777), so its content is not trusted: links are not followed, only plain
files are opened, and a file is written only while its lock is held.
"""

import contextlib
import fcntl
import os
import random
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from pipeline.errors import UserError

# Not under TMPDIR, which may differ by user and job. Containers that share GPUs or cores must share this folder too;
# tests use one of their own.
MACHINE_FOLDER = Path("/tmp/llm-systems-pipeline-locks")
FOLDER_VARIABLE = "PIPELINE_LOCKS"
SHARED_FOLDER_MODE = 0o1777
LONGEST_TEXT = 1000
OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
POLL_S = (0.1, 0.3)  # random each time, so that waiting processes do not keep colliding
ANNOUNCE_AFTER_S = 3.0

T = TypeVar("T")

# The descriptors of the locks that this process holds, by file.
_held: dict[Path, int] = {}


def _forget_held() -> None:
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


# A lock lasts until the last copy of its descriptor is closed, so a forked daemon would keep the host locked.
os.register_at_fork(after_in_child=_forget_held)


def check_folder() -> Path:
    """Return the lock folder, creating it if missing; raises UserError if not all users can share it."""
    folder = os.environ.get(FOLDER_VARIABLE, str(MACHINE_FOLDER))
    path = Path(folder)
    if not path.is_absolute():
        raise UserError(f"{FOLDER_VARIABLE} must be an absolute path, got '{folder}'")
    try:
        with contextlib.suppress(FileExistsError), _open_to_all_users():
            path.mkdir(SHARED_FOLDER_MODE)
        mode = path.lstat().st_mode
    except OSError as error:
        raise _unusable(path, error.strerror) from None
    if not stat.S_ISDIR(mode):
        raise _unusable(path, "it must be a folder")
    if mode & SHARED_FOLDER_MODE != SHARED_FOLDER_MODE:
        raise _unusable(path, f"its mode must be {SHARED_FOLDER_MODE:o}, got {stat.S_IMODE(mode):o}")
    return path


def try_lock(name: str, shared: bool = False) -> bool:
    """Lock a name until this process dies; return False if others hold it. Raises UserError if locking fails."""
    path = _path(name)
    if path in _held:
        return True
    descriptor = _open_file(path)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        # A cleaner of old files may have deleted it meanwhile: the next try creates a new one.
        is_locked = os.path.samestat(path.lstat(), os.fstat(descriptor))
    except (BlockingIOError, FileNotFoundError):
        is_locked = False
    except OSError as error:  # a file system without locks
        os.close(descriptor)
        raise _unusable(path, error.strerror) from None
    if is_locked:
        _held[path] = descriptor
    else:
        os.close(descriptor)
    return is_locked


def sign(name: str, command: str) -> None:
    """Write this process and its command into a held lock, to be shown to those who wait for it."""
    text = f"process {os.getpid()} ({command})".encode(errors="replace")
    with contextlib.suppress(OSError):  # if the disk is full, they do not see a name
        os.ftruncate(_held[_path(name)], 0)
        os.pwrite(_held[_path(name)], text[:LONGEST_TEXT], 0)


def release(name: str) -> None:
    """Release a lock before this process dies."""
    os.close(_held.pop(_path(name)))


def holder(name: str) -> str:
    """Return the process that last signed a lock: `process 12 (python -m pipeline measure ...)`."""
    with open(_open_file(_path(name)), "rb") as file:
        text = file.read(LONGEST_TEXT).decode(errors="replace")
    # Anybody may have written it, and it is shown in a terminal.
    return "".join(letter for letter in text if letter.isprintable()) or "a process that left no name"


def wait_for(attempt: Callable[[], T | None], announcement: Callable[[], str]) -> tuple[T, float]:
    """Retry until `attempt` returns a value; return it and the seconds waited. Announce a long wait once on stderr."""
    began, announced = None, False
    while (result := attempt()) is None:
        began = began or time.monotonic()
        if not announced and time.monotonic() - began > ANNOUNCE_AFTER_S:
            print(announcement(), file=sys.stderr, flush=True)
            announced = True
        time.sleep(random.uniform(*POLL_S))
    return result, time.monotonic() - began if began else 0.0


def _path(name: str) -> Path:
    return check_folder() / f"{name.replace('/', '-')}.lock"


def _open_file(path: Path) -> int:
    """Open a lock's file, creating it if missing; raises UserError unless it is a plain file without other links."""
    try:
        # Create and open separately: with fs.protected_regular set, O_CREAT refuses to open another user's file.
        with contextlib.suppress(FileExistsError), _open_to_all_users():
            os.close(os.open(path, OPEN_FLAGS | os.O_CREAT | os.O_EXCL, 0o666))
        descriptor = os.open(path, OPEN_FLAGS)
    except OSError as error:
        raise _unusable(path, error.strerror) from None
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:  # a hard link may lie outside the folder
        os.close(descriptor)
        raise _unusable(path, "it must be a plain file without hard links")
    return descriptor


def _unusable(path: Path, why: str | None) -> UserError:
    what = "it is a symbolic link" if path.is_symlink() else why
    return UserError(f"cannot lock {path}: {what}; fix that, or set {FOLDER_VARIABLE} to another folder")


@contextlib.contextmanager
def _open_to_all_users() -> Iterator[None]:
    umask = os.umask(0)
    try:
        yield
    finally:
        os.umask(umask)
