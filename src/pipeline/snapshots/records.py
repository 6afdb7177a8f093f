"""Read the records of results folders, snapshots and archives, which may come from anyone."""

import bz2
import gzip
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from pipeline.cells import layout
from pipeline.cells.record import MOST_RECORD_BYTES, parse_record, read_record, record_paths
from pipeline.cells.stage import Stages
from pipeline.errors import UserError

ARCHIVE = "records.tar.xz"
# Limits on what is read. A full GPU run has hundreds of records of at most 200 kB each.
MOST_ARCHIVE_BYTES = 256 * 2**20
MOST_ARCHIVE_MEMBERS = 20_000
Record = dict[str, Any]
OPENERS: Mapping[bytes, Callable[..., Any]] = {b"\xfd7zXZ\x00": lzma.open, b"\x1f\x8b": gzip.open, b"BZh": bz2.open}
# What the libraries raise for a damaged archive or a file that is none; ValueError also for a malformed header.
DAMAGE = (tarfile.TarError, lzma.LZMAError, zlib.error, OSError, EOFError, ValueError, OverflowError, RecursionError)
UNPACK = "if you trust it, unpack it and name the folder"


def load_records(source: Path, stages: Stages) -> list[Record]:
    """Read every record of a results folder, of a folder that holds `results`, of a snapshot or of its archive.

    Raises UserError, one line, if there is no record, or one is damaged.
    """
    if not source.exists():
        raise UserError(f"there is no {source}")
    try:
        if source.is_dir():
            os.listdir(source)  # raises for an unreadable folder, which a search for files would skip
        archive = source / ARCHIVE if source.is_dir() else source
        paths = [path for folder in (source, source / "results") for path in record_paths(folder)]
        in_folder = ((str(path), read_record(path, stages)) for path in paths)
        records = list(archived_records(archive, stages) if archive.is_file() else in_folder)
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror}") from None
    if not records:
        hint = "; it is the folder of one stage: name its parent" if (source / "cells").is_dir() else ""
        raise UserError(f"{source} holds no records: neither STAGE/cells/, results/STAGE/cells/ nor {ARCHIVE}{hint}")
    cells = set()
    for name, record in records:
        layout.check_place(Path(name), record)
        cell = (record["stage"], *record["cell"].items())
        if cell in cells:
            raise UserError(f"{name} cannot be compared: {source} holds two records of this cell")
        cells.add(cell)
    return [record for _, record in records]


def archived_records(archive: Path, stages: Stages) -> Iterator[tuple[str, Record]]:
    """Yield each record of a snapshot's archive, after its name for messages.

    Raises UserError, one line, if the archive is damaged, holds an invalid record, or exceeds the limits, which are
    there because it may come from anyone.
    """
    try:
        # As a stream: the content is read once, through the limit, and never held as a whole.
        limited = _LimitedReader(archive)
        with limited.file, tarfile.open(fileobj=cast(BinaryIO, limited), mode="r|") as members:
            for number, member in enumerate(members, start=1):
                if number > MOST_ARCHIVE_MEMBERS:
                    raise UserError(f"{archive} has more than {MOST_ARCHIVE_MEMBERS:,} members: {UNPACK}")
                if member.name.endswith(".json") and not member.isdir():
                    name = f"{archive}: {member.name}"
                    if not member.isfile():
                        raise UserError(f"{name} is not a regular file: publish that run again")
                    file: Any = members.extractfile(member)
                    yield name, parse_record(file.read(MOST_RECORD_BYTES + 1), name, stages)
    except DAMAGE as error:
        first_line = str(error).partition("\n")[0].rstrip(":")
        raise UserError(f"cannot read {archive}: {first_line}") from None


class _LimitedReader:
    """The unpacked content of an archive; raises UserError when read beyond MOST_ARCHIVE_BYTES."""

    def __init__(self, archive: Path) -> None:
        with archive.open("rb") as file:
            start = file.read(6)
        opener = next((opener for magic, opener in OPENERS.items() if start.startswith(magic)), open)
        self.file, self.archive, self.left_bytes = opener(archive, "rb"), archive, MOST_ARCHIVE_BYTES

    def read(self, size: int) -> bytes:
        content = self.file.read(size)
        self.left_bytes -= len(content)
        if self.left_bytes < 0:
            raise UserError(f"{self.archive} unpacks to more than {MOST_ARCHIVE_BYTES / 2**20:.0f} MiB: {UNPACK}")
        return content
