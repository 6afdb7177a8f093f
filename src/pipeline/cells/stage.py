"""A stage as the code that measures, tabulates and reports sees it: its declarations and where its parts are."""

import ast
import importlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from pipeline.cells import own_cores
from pipeline.cells.rows import RowTypes, columns
from pipeline.errors import UserError
from pipeline.instruments.machine.identity import SOFTWARE
from pipeline.subjects.naming import KINDS, Measured, Subject

# Files that the workflow reads before it runs anything, or would otherwise find missing in the middle of a run.
FILES = ("cell.py", "rows.py", "measure.py", "report.py", "report.md")
CELL_MEMBERS = {
    "gpus": "how many GPUs a cell uses, if there are any",
    "row_keys": "the keys of the rows of a cell that could not be measured",
}
# Prefix of settings in tables, so that none is taken for a column of the rows.
SETTING = "setting_"
# The columns of every table that say what a row was measured on.
RUN_COLUMNS = ("machine", *SOFTWARE)


@dataclass(frozen=True)
class Stage:
    """One experiment: a package with the modules `cell`, `rows`, `measure`, `report` and, optionally, `needs`.

    `cell` and `rows` must not import torch, because the workflow reads them.
    """

    name: str
    package: str

    def _import_part(self, name: str, *needed: str) -> Any:
        """Import a module of its package; raises UserError if it is missing or lacks one of the names."""
        self._require_file(f"{name}.py")
        module = importlib.import_module(f"{self.package}.{name}")
        if missing := [each for each in needed if not hasattr(module, each)]:
            raise UserError(f"{module.__file__} has no {', '.join(missing)}")
        return module

    def _require_file(self, name: str) -> None:
        if not (self.folder / name).is_file():
            self._refuse(f" has no {name}, which every stage needs")

    def _refuse(self, complaint: str) -> NoReturn:
        raise UserError(f"{self.folder}/{complaint}")

    @cached_property
    def _cell(self) -> Any:
        return self._import_part("cell", "Cell", "Settings", "SPLIT_AXIS")

    @property
    def cell_type(self) -> Any:
        """The dataclass of its cells: the axes."""
        return self._cell.Cell

    @property
    def settings_type(self) -> Any:
        """The dataclass of its settings, which all cells of a run share."""
        return self._cell.Settings

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes, in the order of paths."""
        return tuple(item.name for item in fields(self.cell_type))

    @property
    def naming_axes(self) -> tuple[str, ...]:
        """The axes that identify a row: all but `repeat` and those that only choose which rows a cell has."""
        return tuple(name for name in self.axes if name not in ("repeat", *getattr(self._cell, "CHOOSES_ROWS", ())))

    @property
    def question(self) -> str:
        """What the stage asks, in one line; empty if `cell` has no docstring, which `check` refuses."""
        # Read from the file, because `python -OO` drops docstrings.
        text = Path(self._cell.__file__).read_text(encoding="utf-8")
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]

    @property
    def split_axis(self) -> str:
        """The axis whose values are the stage's tables."""
        return self._cell.SPLIT_AXIS

    @property
    def keeps_files(self) -> bool:
        """Whether its cells leave files beside their record: captures, snapshots."""
        return getattr(self._cell, "KEEPS_FILES", False)

    @property
    def subjects(self) -> Measured | None:
        """How its cells measure the user's implementations beside the others; None if they measure none."""
        return getattr(self._cell, "SUBJECTS", None)

    def subjects_among(self, subjects: Iterable[Subject], cell: Any = None) -> tuple[Subject, ...]:
        """Return the subjects of the kind it measures; for a cell with a method `takes(name)`, only those it takes."""
        measured, takes = self.subjects, getattr(cell, "takes", lambda _name: True)
        of_kind = (subject for subject in subjects if measured is not None and subject.kind == measured.kind)
        return tuple(subject for subject in of_kind if takes(subject.name))

    @property
    def reads(self) -> tuple[str, ...]:
        """The other stages whose rows its section reads too."""
        return getattr(self._cell, "READS", ())

    @cached_property
    def row_types(self) -> RowTypes:
        """The types of the rows that its cells produce."""
        return self._import_part("rows", "ROW_TYPES").ROW_TYPES

    @property
    def table_columns(self) -> tuple[str, ...]:
        """The columns of its tables, in order."""
        settings = [SETTING + item.name for item in fields(self.settings_type)]
        return (*self.axes, *self.row_types.column_names(), *settings, *RUN_COLUMNS)

    @cached_property
    def _needs(self) -> Any:
        return importlib.import_module(f"{self.package}.needs") if (self.folder / "needs.py").is_file() else None

    def needed_bytes(self, cell: Any, settings: Any) -> int:
        """Return the least memory that a cell takes on a CPU, by formula; 0 if the stage does not say."""
        return getattr(self._needs, "needed_bytes", lambda *_: 0)(cell, settings)

    def expected_s(self, cell: Any, settings: Any, on_gpu: bool) -> float | None:
        """Return about how many seconds a cell takes; None if the stage does not say."""
        return getattr(self._needs, "expected_s", lambda *_: None)(cell, settings, on_gpu)

    def measure_function(self) -> Callable[..., list[dict[str, Any]]]:
        """Return the function that measures a cell; this imports torch."""
        return importlib.import_module(f"{self.package}.measure").measure

    def build_section(self, rows: Any, other_stages: Mapping[str, Any]) -> Any:
        """Return its section, made from the frame of its rows; other_stages: the frames of the stages in READS."""
        return importlib.import_module(f"{self.package}.report").build(rows, other_stages)

    @cached_property
    def folder(self) -> Path:
        """The folder of its package."""
        path = importlib.import_module(self.package.rpartition(".")[0]).__path__[0]
        return Path(path, self.package.rpartition(".")[2])

    def check(self, known: Iterable[str]) -> None:
        """Raise UserError, one line, if the stage lacks a part or two columns of its tables have the same name."""
        for name in FILES:
            self._require_file(name)
        if not self.question:
            self._refuse("cell.py needs a docstring: its first line is the stage's question")
        for name, meaning in CELL_MEMBERS.items():
            if not hasattr(self.cell_type, name):
                self._refuse(f"cell.py: Cell has no {name}, {meaning}")
        for row_type in self.row_types.types.values():
            where, declared = f"rows.py: {row_type.__name__}", {item.name for item in fields(row_type)}
            for key in {*row_type.KEYS} - declared:
                self._refuse(f"{where}: KEYS has '{key}', which it does not declare")
            try:
                columns(row_type)
            except TypeError as error:
                self._refuse(f"{where}: {error}")
        if self.split_axis not in self.axes:
            self._refuse(f"cell.py: SPLIT_AXIS must be one of {', '.join(self.axes)}, got '{self.split_axis}'")
        for name in {*self.reads} - {*known}:
            self._refuse(f"cell.py: READS has unknown stage '{name}': must be one of {', '.join(known)}")
        if self.subjects is not None and self.subjects.kind not in KINDS:
            self._refuse(
                f"cell.py: SUBJECTS must be of one of the kinds {', '.join(KINDS)}, got '{self.subjects.kind}'"
            )
        for name, count in Counter(self.table_columns).items():
            if count > 1:
                self._refuse(f": two columns of its tables are called '{name}': rename one of them")


Stages = Mapping[str, Stage]


def reserved_names(stages: Stages) -> dict[str, set[str]]:
    """Return, by kind, the names that the user's implementations may not have: those of the stages' own."""
    names: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for stage in stages.values():
        if stage.subjects is not None:
            names[stage.subjects.kind] |= stage.row_types.impl_names()
    return names


def shares_host(cell: Any, gpus_present: int) -> bool:
    """Tell whether other cells may run beside a cell, because that does not change its values.

    If each GPU has its own cores, a cell that uses GPUs shares the host unless its `shares_host` forbids it; if not, it
    runs alone. A cell without GPUs shares the host only if its `shares_host` says so.
    """
    uses_gpus = gpus_present > 0 and cell.gpus > 0
    if uses_gpus and not own_cores.each_gpu_has_own_cores():
        return False
    return getattr(cell, "shares_host", uses_gpus)
