"""All records of one run, from wherever it lies: a results folder, a snapshot, or a snapshot's archive."""

import math
import os
import re
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.cells.record import read_record, record_paths
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
TIME = re.compile(r"(median|q1|q3)_\w*ms")
AMOUNT = re.compile(r"n|peak(_\w+)?_bytes")


def load_run(place: Path) -> list[Record]:
    """Read every record of a results folder, of a folder that holds `results`, of a snapshot or of its archive.

    Raises UserError, one line, where there is no record, or one is damaged or lacks what is compared.
    """
    try:
        if place.is_dir():
            os.listdir(place)  # a search for files passes over a folder that cannot be read
        archive = place / ARCHIVE if place.is_dir() else place
        records = list(archived_records(archive) if archive.is_file() else _in_folder(place))
    except OSError as error:
        raise UserError(f"cannot read {place}: {error.strerror}") from None
    if not records:
        raise UserError(f"{place} holds no records: neither STAGE/cells/, results/STAGE/cells/ nor {ARCHIVE}")
    for name, record in records:
        complaint = next(_complaints(record), None)
        if complaint is not None:
            raise UserError(f"{name} cannot be compared: {complaint}")
    return [record for _, record in records]


def _in_folder(place: Path) -> Iterator[tuple[str, Record]]:
    for folder in (place, place / "results"):
        for path in record_paths(folder):
            yield str(path), read_record(path)


def _complaints(record: Record) -> Iterator[str]:
    """Yield what keeps a sound record from being compared."""
    missing = [fact for fact in FACTS if _fact(record, fact) is None]
    if missing:
        yield f"it has no {', '.join(missing)}"
    if not isinstance(record["machine"]["gpus"], list):
        yield f"machine.gpus is {reprlib.repr(record['machine']['gpus'])}, allowed is a list"
    for number, row in enumerate(record["rows"], start=1):
        for name, value in row.items():
            if TIME.fullmatch(name) and not (value is None or (_is_number(value) and value > 0)):
                yield f"{name} of row {number} is {reprlib.repr(value)}, allowed is a number above 0"
            if AMOUNT.fullmatch(name) and not (value is None or (_is_number(value) and value >= 0)):
                yield f"{name} of row {number} is {reprlib.repr(value)}, allowed is a number of 0 or more"


def _fact(record: Record, path: str) -> Any:
    found: Any = record
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
