"""Map cells to the paths of their records and back, and check that a run may measure into a folder."""

import os
from collections.abc import Sequence
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from pipeline.cells import fields
from pipeline.cells.disk import check_free
from pipeline.cells.record import cell_name, is_empty, read_head, record_paths
from pipeline.cells.stage import Stage, Stages
from pipeline.errors import UserError

REMEDY = "move it out of the results"


def cell_pattern(cell_class: type) -> str:
    """Return the path pattern of all cells of a class: `size={size}/precision={precision}`."""
    return "/".join(f"{axis.name}={{{axis.name}}}" for axis in dataclass_fields(cell_class))


def record_path(results: Path, stage: str, cell: Any) -> Path:
    """Return the path of a cell's record: a folder for each axis, the last axis naming the file."""
    return results / stage / "cells" / f"{'/'.join(fields.words(cell))}.json"


def cell_named(stage: Stage, words: Sequence[str], where: str) -> Any:
    """Return the cell whose path has exactly these `axis=value` words; raises UserError, calling the path `where`."""
    cell = fields.parse_words(stage.cell_type, list(words), where)
    if list(words) != fields.words(cell):
        raise UserError(f"{where}: the path of this cell is {'/'.join(fields.words(cell))}")
    return cell


def recorded_cells(results: Path, stage: Stage) -> dict[Path, Any]:
    """Return the cells of a stage's records by path; raises UserError, one line, for an invalid or misplaced record."""
    stages = {stage.name: stage}
    cells = {path: cell_at(results, path, stages) for path in record_paths(results, stage.name)}
    for path in cells:
        check_place(path, read_head(path, stages))
    return cells


def cell_at(results: Path, path: Path, stages: Stages) -> Any:
    """Return the cell that a record's path names; raises UserError if it names none."""
    name, _, *words = path.relative_to(results).with_suffix("").parts
    try:
        if name not in stages:
            raise UserError(f"{path}: unknown stage '{name}': must be one of {', '.join(stages)}")
        return cell_named(stages[name], words, str(path))
    except UserError as error:
        raise UserError(f"{error}: {REMEDY}") from None


def check_place(path: Path, record: dict[str, Any]) -> None:
    """Raise UserError if a record lies at the path of another cell."""
    cell = [f"{axis}={fields.text(value)}" for axis, value in record["cell"].items()]
    if not str(path).endswith(f"{record['stage']}/cells/{'/'.join(cell)}.json"):
        raise UserError(f"{path} holds the record of another cell, {cell_name(record)}: {REMEDY}")


def check_results(results: Path, machine_kind: str, stages: Stages) -> None:
    """Raise UserError, one line, unless this machine may and can measure into this folder.

    The folder may hold no records of another kind of machine, and none at the path of another cell.
    """
    for path in record_paths(results):
        if is_empty(path):
            continue
        record = read_head(path, stages)
        if (owner := record["machine"]["kind"]) != machine_kind:
            raise UserError(
                f"{results}/ holds records of another machine ({owner}; this is {machine_kind}): to render them "
                "without measuring add `--config measure=false`, to measure here add `--directory runs/NAME`"
            )
        try:
            cell_at(results, path, stages)
        except UserError:
            continue  # not a cell's path, perhaps from an earlier version: nothing reads it
        check_place(path, record)
    check_free(check_writable(results))


def check_writable(folder: Path) -> Path:
    """Return the folder or its nearest existing parent; raises UserError, one line, if this user cannot write there."""
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise UserError(f"{folder}/ cannot be written: {existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"{folder}/ cannot be written: {existing} is read-only for this user")
    return existing
