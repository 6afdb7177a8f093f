"""Files that are written whole or not at all, with room on the disk taken beforehand; and disks that are full."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import UserError

# The exit code of a command that found the disk full: the workflow starts nothing more.
DISK_FULL = 3
# Below this no run starts, and no cell that keeps files: captures take tens of MB.
NEEDED_BYTES = 100 * 2**20
# The quota and the limit on the size of a file are as hard as the end of the disk.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# The file system has no way to allocate beforehand.
NOT_SUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
# Thirty times the largest record that was seen. What is left over comes free as the record is written: where the disk
# has filled meanwhile, Snakemake has this to write its own notes of the cell.
RECORD_ROOM_BYTES = 4 * 2**20
# In a folder of files: the path of the record that they belong to, seen from there. What has none is not ours to empty.
OWNER = ".record"


class DiskFull(UserError):
    """A disk without room for what is to be written: no cell that leaves its record there can succeed."""


class WholeFile:
    """A file to be: it replaces what is at `path` once it is written, and before that lies beside it as `.NAME.part`.

    room_bytes: taken on the disk at once. Whoever is killed leaves the part, which the next writer takes over.
    Raises UserError, one line, where the place cannot be written: DiskFull, where it has no room.
    """

    def __init__(self, path: Path, room_bytes: int = 0) -> None:
        self.path, self._part = path, path.with_name(f".{path.name}.part")
        with _told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._part.open("wb", buffering=0)
            try:
                self._take_room(room_bytes)
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
            self._fill(content.encode(errors="backslashreplace"))  # names of files may be no text
            self._file.truncate()
            os.fsync(self._file.fileno())
            self._part.replace(self.path)
        self._file.close()

    def close(self) -> None:
        """Give up what has not been written, and its room."""
        if not self._file.closed:
            self._file.close()
            self._part.unlink(missing_ok=True)

    def _take_room(self, room_bytes: int) -> None:
        if room_bytes == 0:
            return
        try:
            os.posix_fallocate(self._file.fileno(), 0, room_bytes)
        except OSError as error:
            if error.errno not in NOT_SUPPORTED:
                raise
            self._fill(bytes(room_bytes))

    def _fill(self, data: bytes) -> None:
        """Write all of it from the file's start."""
        self._file.seek(0)
        while data:
            data = data[self._file.write(data) :]


def write_text(path: Path, content: str) -> None:
    """Write a file whole or not at all; raises UserError, one line, where it cannot be written."""
    with WholeFile(path) as file:
        file.write(content)


def record_place(asked: str) -> WholeFile:
    """Return the record to be, its room on the disk taken; raises UserError where none can be written."""
    path = Path(asked)
    if path.suffix != ".json" or os.path.isdir(path):
        raise UserError(f"--out must be a file that ends in .json, got '{asked}'")
    return WholeFile(path, RECORD_ROOM_BYTES)


def files_place(asked: str | None, record: Path) -> Path:
    """Return the folder for a cell's files, by default RECORD.files: made, or rid of what an earlier run left there.

    Raises UserError where it is no such folder, cannot be written or has too little room.
    """
    folder = record.with_suffix(".files") if asked is None else Path(asked)
    if asked == "" or (folder.exists() and not folder.is_dir()):
        raise UserError(f"--files must be a folder, got '{folder if asked is None else asked}'")
    owner = os.path.relpath(os.path.realpath(record), os.path.realpath(folder))
    if not owner.startswith(os.pardir + os.sep):
        raise UserError(f"--files is '{folder}', where the record goes too: name a folder of its own")
    mark = folder / OWNER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_free(folder)
        if any(folder.iterdir()) and not (
            mark.is_file() and mark.read_text(encoding="utf-8", errors="replace") == owner
        ):
            raise UserError(
                f"{folder}/ holds what no earlier run for {record} left: name a new folder by --files, or delete it"
            )
        # All but the mark: whoever is killed in the middle leaves a folder that can still be emptied.
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry != mark:
                entry.unlink()
        mark.write_text(owner, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--files is '{folder}', which cannot be written: {error.strerror}") from None
    return folder


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
