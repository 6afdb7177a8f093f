"""A stage's sweep: grids of axes expanded into cells, and a cell as a path and as words."""

import importlib
import itertools
import pkgutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pipeline.stages
from pipeline.cells import fields
from pipeline.errors import UserError


def stage_names() -> list[str]:
    """Return every stage: the folders of `pipeline.stages`."""
    return sorted(module.name for module in pkgutil.iter_modules(pipeline.stages.__path__) if module.ispkg)


def declaration(stage: str) -> Any:
    """Return a stage's `cell` module: its Cell, Settings, SPLIT_AXIS and QUESTION; imports no torch."""
    if stage not in stage_names():
        raise UserError(f"unknown stage '{stage}'; known are {', '.join(stage_names())}")
    return importlib.import_module(f"pipeline.stages.{stage}.cell")


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


def cell_path(stage: str, cell: object, results: Path = Path("results")) -> Path:
    """Return a cell's record: `results/<stage>/cells/axis=value/.../axis=value.json`."""
    return results / stage / "cells" / ("/".join(fields.words(cell)) + ".json")
