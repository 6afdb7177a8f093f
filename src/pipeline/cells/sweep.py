"""The stages there are, and their sweeps: grids of axes expanded into cells."""

import importlib
import itertools
import pkgutil
from collections.abc import Iterable, Mapping
from typing import Any

import pipeline.stages
from pipeline.cells import fields
from pipeline.errors import UserError


def stage_names() -> list[str]:
    """Return every stage, the folders of `pipeline.stages`, in the order of the write-up."""
    found = [module.name for module in pkgutil.iter_modules(pipeline.stages.__path__) if module.ispkg]
    return sorted(found, key=pipeline.stages.READING_ORDER.index)


def declaration(stage: str) -> Any:
    """Return a stage's `cell` module: its question (the docstring), Cell, Settings and SPLIT_AXIS; imports no torch."""
    if stage not in stage_names():
        raise UserError(f"unknown stage '{stage}'; known are {', '.join(stage_names())}")
    return importlib.import_module(f"pipeline.stages.{stage}.cell")


def keeps_files(stage: str) -> bool:
    """Tell whether the stage's cells leave files beside their record: captures, snapshots."""
    return getattr(declaration(stage), "KEEPS_FILES", False)


def stages_beside(stage: str) -> tuple[str, ...]:
    """Return the other stages whose tables this stage's section reads too."""
    return getattr(declaration(stage), "READS", ())


def row_columns(stage: str) -> tuple[str, ...]:
    """Return the columns that tell the rows of a cell apart: ROW_COLUMNS, or those of the default cell's `row_keys()`.

    A stage declares ROW_COLUMNS where these do not name a measured row in full.
    """
    found = declaration(stage)
    names = dict.fromkeys(name for key in found.Cell().row_keys() for name in key)
    return getattr(found, "ROW_COLUMNS", tuple(names))


def expand(stage: str, grids: Iterable[Mapping[str, Any]], where: str) -> list[Any]:
    """Expand grids, each a cartesian product of the axes it lists, into distinct cells in their order.

    An axis left out of a grid takes its default, so a study along another axis is a second grid.
    """
    cell_class = declaration(stage).Cell
    cells = {}
    for grid in grids:
        axes = {axis: values if isinstance(values, list) else [values] for axis, values in grid.items()}
        for point in itertools.product(*axes.values()):
            cells[fields.build(cell_class, dict(zip(axes, point, strict=True)), where)] = None
    return list(cells)
