"""Write files completely or not at all, with disk space reserved beforehand, and report full disks."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import UserError

# The exit code of a command that found the disk full: the workflow starts nothing more.
DISK_FULL = 3
# With less free than this, no run starts, and no cell that keeps files: captures take tens of MB.
NEEDED_BYTES = 100 * 2**20
# A disk quota or a file size limit is as hard as a full disk.
FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# The file system cannot preallocate.
UNSUPPORTED_ERRORS = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
# Thirty times the largest record seen. The rest is freed when the record is written: if the disk has filled up
# meanwhile, this leaves Snakemake space to write its metadata for the cell.
RECORD_RESERVE_BYTES = 4 * 2**20
# A file in each folder of files that holds the relative path to their record. A folder without it is not ours to empty.
OWNER_FILE_NAME = ".record"


class DiskFull(UserError):
    """The disk has no space for what is to be written, so no cell that writes its record there can succeed."""


class AtomicFile:
    """A file that appears at `path` only once it is completely written; until then it is `.NAME.part` beside it.

    reserve_bytes: disk space to reserve at once. A killed process leaves the part file, which the next writer takes
    over. Raises UserError, one line, if the file cannot be written; DiskFull if there is no space.
    """

    def __init__(self, path: Path, reserve_bytes: int = 0) -> None:
        self.path, self._part = path, path.with_name(f".{path.name}.part")
        with _raising_user_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._part.open("wb", buffering=0)
            try:
                self._reserve(reserve_bytes)
            except OSError:
                self.close()
                raise

    def __enter__(self) -> "AtomicFile":
        """Return this file, which is discarded if the block ends before it is written."""
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def write(self, content: str) -> None:
        """Write the content and move the file to its path; raises as the constructor does."""
        with _raising_user_errors(self.path):
            self._fill(content.encode(errors="backslashreplace"))  # file names in it may not be valid text
            self._file.truncate()
            os.fsync(self._file.fileno())
            self._part.replace(self.path)
        self._file.close()

    def close(self) -> None:
        """Discard a file that has not been written, and its reserved space."""
        if not self._file.closed:
            self._file.close()
            self._part.unlink(missing_ok=True)

    def _reserve(self, reserve_bytes: int) -> None:
        if reserve_bytes == 0:
            return
        try:
            os.posix_fallocate(self._file.fileno(), 0, reserve_bytes)
        except OSError as error:
            if error.errno not in UNSUPPORTED_ERRORS:
                raise
            self._fill(bytes(reserve_bytes))

    def _fill(self, data: bytes) -> None:
        """Write all the data, from the start of the file."""
        self._file.seek(0)
        while data:
            data = data[self._file.write(data) :]


def write_text(path: Path, content: str) -> None:
    """Write a file completely or not at all; raises UserError, one line, if it cannot be written."""
    with AtomicFile(path) as file:
        file.write(content)


def reserve_record(out: str) -> AtomicFile:
    """Return a record's file with its disk space reserved; raises UserError if it cannot be written."""
    path = Path(out)
    if path.suffix != ".json" or os.path.isdir(path):
        raise UserError(f"--out must be a file that ends in .json, got '{out}'")
    return AtomicFile(path, RECORD_RESERVE_BYTES)


def prepare_files_folder(requested: str | None, record: Path) -> Path:
    """Return the folder for a cell's files, by default RECORD.files: created, or emptied of an earlier run's files.

    Raises UserError if it is not such a folder, cannot be written or has too little space.
    """
    folder = record.with_suffix(".files") if requested is None else Path(requested)
    if requested == "" or (folder.exists() and not folder.is_dir()):
        raise UserError(f"--files must be a folder, got '{folder if requested is None else requested}'")
    owner = os.path.relpath(os.path.realpath(record), os.path.realpath(folder))
    if not owner.startswith(os.pardir + os.sep):
        raise UserError(f"--files must not be a folder that holds the record, got '{folder}'")
    owner_file = folder / OWNER_FILE_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_free(folder)
        if any(folder.iterdir()) and not (
            owner_file.is_file() and owner_file.read_text(encoding="utf-8", errors="replace") == owner
        ):
            raise UserError(
                f"{folder}/ has files not from an earlier run for {record}: choose another folder or delete it"
            )
        # Keep the owner file, so that the folder can still be emptied if this process is killed midway.
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry != owner_file:
                entry.unlink()
        owner_file.write_text(owner, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--files '{folder}' cannot be written: {error.strerror}") from None
    return folder


def files_below(folder: Path, suffix: str) -> list[Path]:
    """Return the files below a folder whose names end in `suffix`, sorted. Follows links, also to folders."""
    found = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        real_parent = Path(os.path.realpath(parent))
        # Skip links to a parent folder, which would never end.
        folders[:] = [name for name in folders if not real_parent.is_relative_to(os.path.realpath(real_parent / name))]
        found += [Path(parent, name) for name in names if name.endswith(suffix)]
    return sorted(found)


def check_free(folder: Path) -> None:
    """Raise DiskFull, one line, if the disk of an existing folder has less than NEEDED_BYTES free."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < NEEDED_BYTES:
        free, needed = (f"{size / 2**20:.0f} MiB" for size in (free_bytes, NEEDED_BYTES))
        raise DiskFull(f"{folder}/ is on a full disk: {free} free, {needed} needed")


@contextlib.contextmanager
def raising_disk_full() -> Iterator[None]:
    """Turn an OSError for lack of disk space into DiskFull, one line; other errors pass through."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_ERRORS:
            raise
        raise DiskFull(f"cannot write {error.filename or 'a file'}: {error.strerror}") from None


@contextlib.contextmanager
def _raising_user_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = DiskFull if error.errno in FULL_ERRORS else UserError
        raise kind(f"cannot write {path}: {error.strerror}") from None
