"""What must hold before anything is measured: folders that can be written, and results of this machine."""

import os
from pathlib import Path
from typing import Any

from pipeline.cells import layout
from pipeline.cells.disk import check_free
from pipeline.cells.record import is_empty, read_head, record_paths
from pipeline.cells.stage import Stages
from pipeline.errors import UserError


def check_results(results: Path, machine_kind: str, stages: Stages) -> None:
    """Raise UserError, one line, unless this machine may and can measure into this folder."""
    for path in record_paths(results):
        if is_empty(path):
            continue
        record = read_head(path, stages)
        _check_owner(results, record["machine"]["kind"], machine_kind)
        _check_cell(results, path, record, stages)
    check_free(check_writable(results))


def check_writable(folder: Path) -> Path:
    """Return the folder, or where it is missing the one to make it in.

    Raises UserError, one line, where this user cannot write there.
    """
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise UserError(f"{folder}/ cannot be written: {existing} is no folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"{folder}/ cannot be written: {existing} is read-only for this user")
    return existing


def _check_owner(results: Path, owner: str, machine_kind: str) -> None:
    """Stop where the folder holds records of another kind of machine, which must not be mixed or replaced."""
    if owner != machine_kind:
        raise UserError(
            f"{results}/ holds records of another machine ({owner}; this is {machine_kind}): to render them "
            "without measuring add `--config measure=false`, to measure here add `--directory runs/NAME`"
        )


def _check_cell(results: Path, path: Path, record: dict[str, Any], stages: Stages) -> None:
    """Stop where a record lies in the place of another cell, which would not be measured and be told wrongly."""
    try:
        layout.cell_at(results, path, stages)
    except UserError:
        return  # the place of no cell, of an earlier version perhaps: nothing reads it
    layout.check_place(path, record)
