"""Locks that all users of the machine share: on GPUs, and on the host. The kernel holds each until its process dies.

What others put into their sticky folder is not trusted: no link is followed, only plain files are opened, and nothing
is written to a file before its lock is held.
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

# Not under TMPDIR, which every user and every job may set. A container that shares GPUs or cores with others needs a
# folder that it shares with them too, and tests one of their own.
MACHINE_FOLDER = Path("/tmp/llm-systems-pipeline-locks")
FOLDER_VARIABLE = "PIPELINE_LOCKS"
FOR_EVERYONE = 0o1777
LONGEST_TEXT = 1000
OPENING = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
POLL_S = (0.1, 0.3)  # drawn anew each time, so that processes that wait do not collide again and again
QUIET_S = 3.0

T = TypeVar("T")

# The descriptors of the locks that this process holds, by file.
_held: dict[Path, int] = {}


def _forget_held() -> None:
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


# A lock lasts until the last copy of its descriptor is closed: a daemon of the user's would keep the host.
os.register_at_fork(after_in_child=_forget_held)


def check_folder() -> Path:
    """Return the folder of the locks, made where it is missing; raises UserError, unless all users can share it."""
    asked = os.environ.get(FOLDER_VARIABLE, str(MACHINE_FOLDER))
    path = Path(asked)
    if not path.is_absolute():
        raise UserError(f"{FOLDER_VARIABLE} must be an absolute path, got '{asked}'")
    try:
        with contextlib.suppress(FileExistsError), _open_to_all_users():
            path.mkdir(FOR_EVERYONE)
        mode = path.lstat().st_mode
    except OSError as error:
        raise _unusable(path, error.strerror) from None
    if not stat.S_ISDIR(mode):
        raise _unusable(path, "it must be a folder")
    if mode & FOR_EVERYONE != FOR_EVERYONE:
        raise _unusable(path, f"its mode must be {FOR_EVERYONE:o}, got {stat.S_IMODE(mode):o}")
    return path


def try_lock(name: str, shared: bool = False) -> bool:
    """Lock a name until this process dies; return False while others hold it; raises UserError without locks."""
    path = _path(name)
    if path in _held:
        return True
    descriptor = _open_file(path)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        # A cleaner of old files may have taken it away: the next try makes a new one.
        is_taken = os.path.samestat(path.lstat(), os.fstat(descriptor))
    except (BlockingIOError, FileNotFoundError):
        is_taken = False
    except OSError as error:  # a file system that has no locks
        os.close(descriptor)
        raise _unusable(path, error.strerror) from None
    if is_taken:
        _held[path] = descriptor
    else:
        os.close(descriptor)
    return is_taken


def sign(name: str, command: str) -> None:
    """Write into a lock that is held what those who wait for it are told."""
    text = f"process {os.getpid()} ({command})".encode(errors="replace")
    with contextlib.suppress(OSError):  # a full disk: they are told less
        os.ftruncate(_held[_path(name)], 0)
        os.pwrite(_held[_path(name)], text[:LONGEST_TEXT], 0)


def release(name: str) -> None:
    """Give a lock back before this process dies."""
    os.close(_held.pop(_path(name)))


def holder(name: str) -> str:
    """Name the process that signed the lock last: `process 12 (python -m pipeline measure ...)`."""
    with open(_open_file(_path(name)), "rb") as file:
        text = file.read(LONGEST_TEXT).decode(errors="replace")
    # Anybody may have written it, and it goes to a terminal.
    return "".join(letter for letter in text if letter.isprintable()) or "a process that left no name"


def wait_for(attempt: Callable[[], T | None], announcement: Callable[[], str]) -> tuple[T, float]:
    """Try until something is found; return it and the seconds waited. A long wait is announced once on stderr."""
    began, announced = None, False
    while (taken := attempt()) is None:
        began = began or time.monotonic()
        if not announced and time.monotonic() - began > QUIET_S:
            print(announcement(), file=sys.stderr, flush=True)
            announced = True
        time.sleep(random.uniform(*POLL_S))
    return taken, time.monotonic() - began if began else 0.0


def _path(name: str) -> Path:
    return check_folder() / f"{name.replace('/', '-')}.lock"


def _open_file(path: Path) -> int:
    """Open a lock's file, made where it is missing; raises UserError for what is no file or has another name too."""
    try:
        # Apart, for where fs.protected_regular is set O_CREAT alone refuses a file that another user has made.
        with contextlib.suppress(FileExistsError), _open_to_all_users():
            os.close(os.open(path, OPENING | os.O_CREAT | os.O_EXCL, 0o666))
        descriptor = os.open(path, OPENING)
    except OSError as error:
        raise _unusable(path, error.strerror) from None
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:  # a second name may lie outside the folder
        os.close(descriptor)
        raise _unusable(path, "it must be a plain file with one name")
    return descriptor


def _unusable(path: Path, why: str | None) -> UserError:
    what = "it is a symbolic link" if path.is_symlink() else why
    return UserError(f"cannot lock {path}: {what}; put that right, or set {FOLDER_VARIABLE} to another folder")


@contextlib.contextmanager
def _open_to_all_users() -> Iterator[None]:
    umask = os.umask(0)
    try:
        yield
    finally:
        os.umask(umask)
