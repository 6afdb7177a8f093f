"""Read the records of a snapshot's archive, with limits because it may come from anyone."""

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from pipeline.cells.record import MOST_ARCHIVE_BYTES, MOST_ARCHIVE_MEMBERS, MOST_RECORD_BYTES, parse_complete
from pipeline.cells.stage import Stages
from pipeline.errors import UserError

OPENERS: Mapping[bytes, Callable[..., Any]] = {b"\xfd7zXZ\x00": lzma.open, b"\x1f\x8b": gzip.open, b"BZh": bz2.open}
# Exceptions of the libraries for files that are not archives or damaged; ValueError also for a malformed header.
DAMAGE = (tarfile.TarError, lzma.LZMAError, zlib.error, OSError, EOFError, ValueError, OverflowError, RecursionError)
UNPACK = "if you trust it, unpack it and name the folder"


def archived_records(archive: Path, stages: Stages) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each record for messages, and the record.

    Raises UserError, one line, if the archive is damaged, exceeds the limits, or holds an invalid record.
    """
    try:
        # As a stream: the content is read once, through the limit, and never held as a whole.
        limited = _Limited(_unpacked(archive), archive)
        with limited.file, tarfile.open(fileobj=cast(BinaryIO, limited), mode="r|") as members:
            for number, member in enumerate(members, start=1):
                if number > MOST_ARCHIVE_MEMBERS:
                    raise UserError(f"{archive} has more than {MOST_ARCHIVE_MEMBERS:,} members: {UNPACK}")
                if member.name.endswith(".json") and not member.isdir():
                    name = f"{archive}: {member.name}"
                    if not member.isfile():
                        raise UserError(f"{name} is no file: publish that run again")
                    file: Any = members.extractfile(member)
                    yield name, parse_complete(file.read(MOST_RECORD_BYTES + 1), name, stages)
    except DAMAGE as error:
        first_line = str(error).partition("\n")[0].rstrip(":")
        raise UserError(f"cannot read {archive}: {first_line}") from None


class _Limited:
    """A file that refuses to be read beyond MOST_ARCHIVE_BYTES."""

    def __init__(self, file: BinaryIO, archive: Path) -> None:
        self.file, self.archive, self.left_bytes = file, archive, MOST_ARCHIVE_BYTES

    def read(self, size: int) -> bytes:
        content = self.file.read(size)
        self.left_bytes -= len(content)
        if self.left_bytes < 0:
            raise UserError(f"{self.archive} unpacks to more than {MOST_ARCHIVE_BYTES / 2**20:.0f} MiB: {UNPACK}")
        return content


def _unpacked(archive: Path) -> BinaryIO:
    """Open an archive for reading its uncompressed content, whatever the compression."""
    with archive.open("rb") as file:
        start = file.read(6)
    opener = next((opener for magic, opener in OPENERS.items() if start.startswith(magic)), open)
    return opener(archive, "rb")
