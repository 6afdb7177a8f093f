"""The stages there are, and their sweeps: grids of axes expanded into cells."""

import importlib
import itertools
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import fields as declared
from pathlib import Path
from typing import Any

import pipeline.stages
from pipeline.cells import fields
from pipeline.errors import UserError

# What the workflow reads of a stage before it runs anything, and what it would miss only in the middle of a run.
FILES = ("cell.py", "measure.py", "report/section.py", "report/section.md.j2")
NAMES = ("Cell", "Settings", "SPLIT_AXIS")


def stage_names() -> list[str]:
    """Return every stage, the folders of `pipeline.stages`, in the order of the write-up.

    Raises UserError, one line, where the folders are not those that READING_ORDER has.
    """
    place, order = _stages_folder(), pipeline.stages.READING_ORDER
    found = [module.name for module in pkgutil.iter_modules([str(place)]) if module.ispkg]
    for name in found:
        if name not in order:
            raise UserError(f"{place / name}/ is no stage yet: add '{name}' to READING_ORDER in {place}/__init__.py")
    for name in order:
        if name not in found:
            raise UserError(f"READING_ORDER in {place}/__init__.py has '{name}', but there is no {name}/__init__.py")
    return list(order)


def declaration(stage: str) -> Any:
    """Return a stage's `cell` module: its question (the docstring), Cell, Settings and SPLIT_AXIS; imports no torch.

    Raises UserError, one line, for a stage that is unknown, or does not declare these.
    """
    if stage not in stage_names():
        raise UserError(f"unknown stage '{stage}'; known are {', '.join(stage_names())}")
    _require_files(stage, FILES[:1])
    module = importlib.import_module(f"pipeline.stages.{stage}.cell")
    lacking = [name for name in NAMES if not hasattr(module, name)]
    if lacking or not module.__doc__:
        raise UserError(f"{module.__file__} has no {', '.join(lacking) or 'docstring that asks its question'}")
    return module


def check_stage(stage: str) -> None:
    """Raise UserError, one line, where a stage lacks a part that measuring it or writing it up takes."""
    found = declaration(stage)
    _require_files(stage, FILES)
    axes = [axis.name for axis in declared(found.Cell)]
    if found.SPLIT_AXIS not in axes:
        raise UserError(f"{found.__file__}: SPLIT_AXIS is '{found.SPLIT_AXIS}', allowed are {', '.join(axes)}")
    for name in stages_beside(stage):
        if name not in stage_names():
            raise UserError(f"{found.__file__}: READS has '{name}', known stages are {', '.join(stage_names())}")


def _require_files(stage: str, names: Iterable[str]) -> None:
    for name in names:
        if not (_stages_folder() / stage / name).is_file():
            raise UserError(f"{_stages_folder() / stage}/ has no {name}, which every stage has")


def _stages_folder() -> Path:
    return Path(pipeline.stages.__path__[0])


def keeps_files(stage: str) -> bool:
    """Tell whether the stage's cells leave files beside their record: captures, snapshots."""
    return getattr(declaration(stage), "KEEPS_FILES", False)


def shares_host(cell: Any, on_gpu: bool) -> bool:
    """Tell whether other cells may run beside a cell: whether company on the host changes none of its figures.

    Only a cell that says so does. The others take times by the host's clock, which is the time of whatever else runs
    there too: of a step, a launch, a collective or, on a CPU, of anything.
    """
    return hasattr(cell, "shares_host") and cell.shares_host(on_gpu)


def needs(stage: str) -> Any:
    """Return a stage's module `needs`, which tells before a cell is measured what it takes; None where it has none."""
    if not (_stages_folder() / stage / "needs.py").is_file():
        return None
    return importlib.import_module(f"pipeline.stages.{stage}.needs")


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
    cells: dict[Any, None] = {}
    for grid in grids:
        axes = {axis: values if isinstance(values, list) else [values] for axis, values in grid.items()}
        for point in itertools.product(*axes.values()):
            cells[fields.build(cell_class, dict(zip(axes, point, strict=True)), where)] = None
    return list(cells)
