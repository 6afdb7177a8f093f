"""Files that are written whole or not at all, their room on the disk taken beforehand; and disks that are full."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import UserError

# The exit code of a command that found the disk full: the workflow starts nothing more.
DISK_FULL = 3
# Below this no run starts, and no cell that keeps files: captures take tens of MB.
NEEDED_BYTES = 100 * 2**20
# The quota and the limit on the size of a file are as hard as the end of the disk.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# The file system takes no file without a name (a network's, an old kernel), or has no way to allocate beforehand.
NOT_SUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EISDIR, errno.EINVAL}
OPEN_FILES = "/proc/self/fd"
MODE = 0o666  # less what the umask takes


class DiskFull(UserError):
    """A disk without room for what is to be written: no cell that leaves its record there can succeed."""


class WholeFile:
    """A file to be: it replaces what is at `path` once it is written, and before that is nothing that anyone sees.

    room_bytes: taken on the disk at once, so that no more than that can be written whatever fills the disk meanwhile.
    Raises UserError, one line, where the place cannot be written: DiskFull, where it has no room.
    """

    def __init__(self, path: Path, room_bytes: int = 0) -> None:
        self.path = path
        self._name: str | None = None
        with _told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = self._open()
            try:
                _take_room(self._descriptor, room_bytes)
            except OSError:
                self.close()
                raise

    def __enter__(self) -> "WholeFile":
        """Return this file, which is given up when the block ends before it is written."""
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def write(self, content: str) -> None:
        """Write the content and put the file in its place; raises as the constructor does."""
        with _told(self.path):
            data = content.encode(errors="backslashreplace")  # names of files may be no text
            _write(self._descriptor, data)
            os.ftruncate(self._descriptor, len(data))
            os.fsync(self._descriptor)
            os.replace(self._named(), self.path)
            self._name = None
        self.close()

    def close(self) -> None:
        """Give up what has not been written, and its room."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._name is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._name)
            self._name = None

    def _open(self) -> int:
        """Open a file without a name, of which a killed process leaves nothing; where that cannot be, one with."""
        if hasattr(os, "O_TMPFILE") and os.path.isdir(OPEN_FILES):  # Linux
            with contextlib.suppress(FileNotFoundError):
                os.lstat(self._new_name())  # raises for a name that the file could not have later
            try:
                return os.open(self.path.parent, os.O_TMPFILE | os.O_RDWR, MODE)
            except OSError as error:
                if error.errno not in NOT_SUPPORTED:
                    raise
        name = self._new_name()
        descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, MODE)
        self._name = name
        return descriptor

    def _named(self) -> str:
        """Return the file's name, after giving it one where it has none."""
        if self._name is None:
            self._name = self._new_name()
            try:
                # With a descriptor, needed or not: without one Python does not follow the symbolic link.
                os.link(f"{OPEN_FILES}/{self._descriptor}", self._name, src_dir_fd=self._descriptor)
            except OSError:
                shutil.copy(f"{OPEN_FILES}/{self._descriptor}", self._name)
        return self._name

    def _new_name(self) -> str:
        return tempfile.mktemp(dir=self.path.parent, prefix=f".{self.path.name}.")


def write_text(path: Path, content: str) -> None:
    """Write a file whole or not at all; raises UserError, one line, where it cannot be written."""
    with WholeFile(path) as file:
        file.write(content)


def files_below(folder: Path, suffix: str) -> list[Path]:
    """Return the files in and below a folder whose names end so, sorted. Links are followed, to folders too."""
    found = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        above = Path(os.path.realpath(parent))
        # A link to a folder above would never end.
        folders[:] = [name for name in folders if not above.is_relative_to(os.path.realpath(above / name))]
        found += [Path(parent, name) for name in names if name.endswith(suffix)]
    return sorted(found)


def check_free(folder: Path, needed_bytes: int = NEEDED_BYTES) -> None:
    """Raise DiskFull, one line, where the disk of an existing folder has less than that free."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        free, needed = (f"{size / 2**20:.0f} MiB" for size in (free_bytes, needed_bytes))
        raise DiskFull(f"{folder}/ is on a full disk: {free} free, {needed} needed")


@contextlib.contextmanager
def naming_the_full_disk() -> Iterator[None]:
    """Tell in one line, by DiskFull, that a file could not be written for want of room; other errors pass through."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DiskFull(f"cannot write {error.filename or 'a file'}: {error.strerror}") from None


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = DiskFull if error.errno in FULL else UserError
        raise kind(f"cannot write {path}: {error.strerror}") from None


def _take_room(descriptor: int, room_bytes: int) -> None:
    if room_bytes == 0:
        return
    try:
        os.posix_fallocate(descriptor, 0, room_bytes)
        return
    except AttributeError:  # macOS
        pass
    except OSError as error:
        if error.errno not in NOT_SUPPORTED:
            raise
    _write(descriptor, bytes(room_bytes))


def _write(descriptor: int, data: bytes) -> None:
    """Write all of it from the file's start."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    while data:
        data = data[os.write(descriptor, data) :]
