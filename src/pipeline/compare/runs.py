"""Read all records of one run: from a results folder, a snapshot, or a snapshot's archive."""

import os
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


def load_run(source: Path, stages: Stages) -> list[Record]:
    """Read every record of a results folder, of a folder that holds `results`, of a snapshot or of its archive.

    Raises UserError, one line, if there is no record, or one is damaged.
    """
    try:
        if source.is_dir():
            os.listdir(source)  # raises for an unreadable folder, which a search for files would skip
        archive = source / ARCHIVE if source.is_dir() else source
        records = list(archived_records(archive, stages) if archive.is_file() else _in_folder(source, stages))
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror}") from None
    if not records:
        raise UserError(f"{source} holds no records: neither STAGE/cells/, results/STAGE/cells/ nor {ARCHIVE}")
    cells = set()
    for name, record in records:
        layout.check_place(Path(name), record)
        cell = (record["stage"], *record["cell"].items())
        if cell in cells:
            raise UserError(f"{name} cannot be compared: {source} holds two records of this cell")
        cells.add(cell)
    return [record for _, record in records]


def _in_folder(source: Path, stages: Stages) -> Iterator[tuple[str, Record]]:
    for folder in (source, source / "results"):
        for path in record_paths(folder):
            yield str(path), read_record(path, stages)
