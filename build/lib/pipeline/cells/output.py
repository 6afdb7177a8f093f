"""The files that a cell will write, its record and a folder of others: checked before anything is measured."""

import os
import shutil
from pathlib import Path

from pipeline.cells.disk import WholeFile, check_free
from pipeline.errors import UserError

# In a folder of files: the path of the record that they belong to, seen from there. What has none is not ours to empty.
OWNER = ".record"
# Thirty times the largest record that was seen. What is left over comes free as the record is written: where the disk
# has filled meanwhile, Snakemake has this to write its own notes of the cell.
RECORD_ROOM_BYTES = 4 * 2**20


def record_place(asked: str) -> WholeFile:
    """Return the record to be, its room on the disk taken; raises UserError where none can be written."""
    path = Path(asked)
    if path.suffix != ".json" or os.path.isdir(path):
        raise UserError(f"--out must be a file that ends in .json, got '{asked}'")
    return WholeFile(path, RECORD_ROOM_BYTES)


def files_place(asked: str | None, record: Path) -> Path:
    """Return the folder for a cell's files, by default RECORD.files: made, or rid of what an earlier run left there.

    Raises UserError where it is no folder, cannot be written, has too little room, or holds what no earlier run for
    this record left.
    """
    folder = record.with_suffix(".files") if asked is None else Path(asked)
    if asked == "" or (folder.exists() and not folder.is_dir()):
        raise UserError(f"--files must be a folder, got '{folder if asked is None else asked}'")
    owner = os.path.relpath(os.path.realpath(record), os.path.realpath(folder))
    if not owner.startswith(os.pardir + os.sep):
        raise UserError(f"--files is '{folder}', where the record goes too: name a folder of its own")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_free(folder)
        if any(folder.iterdir()) and _owner(folder) != owner:
            raise UserError(
                f"{folder}/ holds what no earlier run for {record} left: name a new folder by --files, or delete it"
            )
        _empty(folder)
        (folder / OWNER).write_text(owner, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--files is '{folder}', which cannot be written: {error.strerror}") from None
    return folder


def _owner(folder: Path) -> str | None:
    mark = folder / OWNER
    return mark.read_text(encoding="utf-8", errors="replace") if mark.is_file() else None


def _empty(folder: Path) -> None:
    """Remove all but the owner's mark: whoever is killed in the middle leaves a folder that can still be emptied."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != OWNER:
            entry.unlink()
