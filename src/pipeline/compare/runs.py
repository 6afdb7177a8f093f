"""All records of one run, from wherever it lies: a results folder, a snapshot, or a snapshot's archive."""

import os
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.cells import layout
from pipeline.cells.record import read_record, record_paths
from pipeline.cells.stage import Stages
from pipeline.compare.archive import archived_records
from pipeline.errors import UserError
from pipeline.report.publish import ARCHIVE

Record = dict[str, Any]
# What a comparison tells of beyond the parts that every record is read for.
FACTS = (
    "machine.cpu.model",
    "machine.cpu.logical_cores",
    "machine.gpus",
    "machine.threads",
    "machine.os",
    "code.commit",
)


def load_run(place: Path, stages: Stages) -> list[Record]:
    """Read every record of a results folder, of a folder that holds `results`, of a snapshot or of its archive.

    Raises UserError, one line, where there is no record, or one is damaged or lacks what is compared.
    """
    try:
        if place.is_dir():
            os.listdir(place)  # a search for files passes over a folder that cannot be read
        archive = place / ARCHIVE if place.is_dir() else place
        records = list(archived_records(archive, stages) if archive.is_file() else _in_folder(place, stages))
    except OSError as error:
        raise UserError(f"cannot read {place}: {error.strerror}") from None
    if not records:
        raise UserError(f"{place} holds no records: neither STAGE/cells/, results/STAGE/cells/ nor {ARCHIVE}")
    cells = set()
    for name, record in records:
        complaint = next(_complaints(record), None)
        if complaint is not None:
            raise UserError(f"{name} cannot be compared: {complaint}")
        layout.check_place(Path(name), record)
        cell = (record["stage"], *record["cell"].items())
        if cell in cells:
            raise UserError(f"{name} cannot be compared: {place} holds two records of this cell")
        cells.add(cell)
    return [record for _, record in records]


def _in_folder(place: Path, stages: Stages) -> Iterator[tuple[str, Record]]:
    for folder in (place, place / "results"):
        for path in record_paths(folder):
            yield str(path), read_record(path, stages)


def _complaints(record: Record) -> Iterator[str]:
    """Yield what keeps a sound record from being compared."""
    missing = [fact for fact in FACTS if _fact(record, fact) is None]
    if missing:
        yield f"it has no {', '.join(missing)}"
    if not isinstance(record["machine"]["gpus"], list):
        yield f"machine.gpus is {reprlib.repr(record['machine']['gpus'])}, allowed is a list"


def _fact(record: Record, path: str) -> Any:
    part: Any = record
    for name in path.split("."):
        part = part.get(name) if isinstance(part, dict) else None
    return part
