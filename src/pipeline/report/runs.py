"""All records of one run, from wherever it lies: a results folder, a snapshot, or a snapshot's archive."""

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.cells.record import parse_record, read_record, record_paths
from pipeline.errors import UserError
from pipeline.report.publish import ARCHIVE

Record = dict[str, Any]
PARTS = ("stage", "cell", "settings", "rows", "machine", "code")


def load_run(place: Path) -> list[Record]:
    """Read every record of a results folder, of a folder that holds `results`, of a snapshot or of its archive.

    Raises UserError, one line, where there is no record or one is damaged.
    """
    archive = place / ARCHIVE if place.is_dir() else place
    records = list(_archived(archive) if archive.is_file() else _in_folder(place))
    if not records:
        raise UserError(f"{place} holds no records: neither STAGE/cells/, results/STAGE/cells/ nor {ARCHIVE}")
    for name, record in records:
        missing = [part for part in PARTS if part not in record]
        if missing:
            raise UserError(f"{name} is no record: it has no {', '.join(missing)}")
    return [record for _, record in records]


def _in_folder(place: Path) -> Iterator[tuple[str, Record]]:
    for folder in (place, place / "results"):
        for path in record_paths(folder):
            yield str(path), read_record(path)


def _archived(archive: Path) -> Iterator[tuple[str, Record]]:
    try:
        with tarfile.open(archive) as members:
            for member in members:
                if member.name.endswith(".json"):
                    name = f"{archive}: {member.name}"
                    yield name, parse_record(members.extractfile(member).read().decode(errors="replace"), name)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(f"cannot read {archive}: {error}") from None
