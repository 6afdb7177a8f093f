"""Where records lie: a path for each cell, and of a path the one cell that it names."""

from collections.abc import Sequence
from dataclasses import fields as declared
from pathlib import Path
from typing import Any

from pipeline.cells import fields, sweep
from pipeline.cells.record import read_head, record_paths
from pipeline.errors import UserError

REMEDY = "move it out of the results"


def cell_pattern(cell_class: type) -> str:
    """Return the path of every cell of a class with its values left open: `size={size}/precision={precision}`."""
    return "/".join(f"{axis.name}={{{axis.name}}}" for axis in declared(cell_class))


def record_path(results: Path, stage: str, cell: Any) -> Path:
    """Return the path of a cell's record: a folder for each axis, the last axis naming the file."""
    return results / stage / "cells" / f"{'/'.join(fields.words(cell))}.json"


def cell_named(stage: str, words: Sequence[str], where: str) -> Any:
    """Return the cell whose path has these words `axis=value`.

    Raises UserError, which calls the path `where`, for a word that is none of the stage's, or spelt or placed otherwise
    than in the path of that cell.
    """
    cell = fields.parse_words(sweep.declaration(stage).Cell, list(words), where)
    if list(words) != fields.words(cell):
        raise UserError(f"{where}: the path of this cell is {'/'.join(fields.words(cell))}")
    return cell


def found_cells(results: Path, stage: str) -> dict[Path, Any]:
    """Return the cells that the records of a stage are of, by their paths.

    Raises UserError, one line, for a file that is no record, whose path names no cell, or that holds another cell.
    """
    found = {path: cell_at(results, path) for path in record_paths(results, stage)}
    for path, cell in found.items():
        check_holds(path, stage, cell, read_head(path))
    return found


def cell_at(results: Path, path: Path) -> Any:
    """Return the cell that the path of a record names; raises UserError where it names none."""
    stage, _, *words = path.relative_to(results).with_suffix("").parts
    try:
        return cell_named(stage, words, str(path))
    except UserError as error:
        raise UserError(f"{error}: {REMEDY}") from None


def check_holds(path: Path, stage: str, cell: Any, record: dict[str, Any]) -> None:
    """Raise UserError where the record at the path of a cell is of another one."""
    texts = {axis: fields.text(value) for axis, value in record["cell"].items()}
    if record["stage"] != stage or texts != fields.texts(cell):
        words = " ".join(f"{axis}={value}" for axis, value in texts.items())
        raise UserError(f"{path} holds the record of another cell, {record['stage']} {words}: {REMEDY}")
