"""A stage as a run has planned it: its cells, their paths, commands and times, its tables, and what is stale of it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.cells import fields, freshness, layout
from pipeline.cells.config import Plan
from pipeline.cells.record import has_failed, is_empty, read_head
from pipeline.cells.stage import Stage
from pipeline.errors import UserError
from pipeline.instruments.machine.cgroups import memory_limit_bytes
from pipeline.subjects import naming

# Seconds of a cell of a stage that does not say, and of one that does not fit into the host's memory.
UNKNOWN_S, SKIPPED_S = 10.0, 0.5
PARTS = ("start_up", "set_up", "measuring")
# What a cell may ask of whoever runs it; over several nodes as Snakemake's executor for Slurm names it.
RESOURCES, OVER_NODES = ("gpu", "nodes"), ("mpi", "tasks", "tasks_per_gpu", "gres")


class PlannedStage:
    """The cells to measure of a stage, or where nothing is measured those that are there in the folder of results."""

    def __init__(self, declared: Stage, plan: Plan, results: Path, has_gpu: bool) -> None:
        self.declared, self.plan, self.of_stage, self.has_gpu = declared, plan, plan.stages[declared.name], has_gpu
        self.name, self.package, self.question = declared.name, declared.package, declared.question
        self.split_axis, self.results, self.folder = declared.split_axis, results, results / declared.name
        pattern = layout.cell_pattern(declared.cell_type)
        self.record_pattern, self.log_pattern = f"{self.folder}/cells/{pattern}.json", f"logs/{self.name}/{pattern}.log"
        self.files_pattern = f"{self.folder}/files/{pattern}" if declared.keeps_files else ""
        is_measured = plan.measure and bool(self.of_stage.cells)
        self.cells = self._paths(self.of_stage.cells) if plan.measure else layout.recorded_cells(results, declared)
        self.subjects = naming.facts(self.of_stage.subjects) if is_measured else []

    def _paths(self, cells: Iterable[Any]) -> dict[Path, Any]:
        return {layout.record_path(self.results, self.name, cell): cell for cell in cells}

    @cached_property
    def declarations(self) -> set[str]:
        """The modules that declare cells and rows, with the formulas and rules by which columns are derived."""
        return freshness.deriving_modules(self.package)

    def records(self) -> list[str]:
        """Return the records that the stage's tables are made of."""
        return list(map(str, self.cells))

    def missing(self) -> list[dict[str, Any]]:
        """Return the stage and cell of what the scale asks for and was not measured."""
        asked = self._paths(self.of_stage.cells)
        return [{"stage": self.name, "cell": asdict(cell)} for path, cell in asked.items() if path not in self.cells]

    def records_of(self, wildcards: Mapping[str, str]) -> list[str]:
        """Return the records of one table; a value of which the scale has no cell is measured on the quickest grid."""
        value = dict(wildcards.items())[self.split_axis]
        if value in self.split_values():
            return [str(path) for path, cell in self.cells.items() if self._split_value(cell) == value]
        return list(map(str, self._paths(self._quickest_grid(value))))

    def _quickest_grid(self, value: str) -> list[Any]:
        """Return the cells of the grid that takes the least time with this one value on the split axis."""
        found, complaint = [], UserError(f"{self.name} has no grid")
        for grid in self.of_stage.grids:
            try:
                found.append(fields.expand(self.declared.cell_type, [{**grid, self.split_axis: [value]}], self.name))
            except UserError as error:  # another axis of this grid does not go with it
                complaint = error
        if not found:
            raise complaint
        return min(found, key=lambda cells: sum(map(self._told_s, cells)))

    def _split_value(self, cell: Any) -> str:
        return fields.text(getattr(cell, self.split_axis))

    def split_values(self) -> list[str]:
        """Return the values on the split axis: the names of the stage's tables."""
        return sorted({self._split_value(cell) for cell in self.cells.values()})

    def _other_values(self) -> dict[str, str]:
        """Return what else of the split axis can be asked for, where there is measuring: see `value_patterns`."""
        return fields.value_patterns(self.declared.cell_type, self.split_axis) if self.plan.measure else {}

    def value_pattern(self) -> str:
        """Return, as a regular expression, the names of the tables that can be asked for."""
        return "|".join([*map(re.escape, self.split_values()), *self._other_values().values()])

    def tables(self) -> list[str]:
        """Return the stage's tables."""
        return [f"{self.folder}/{value}.csv" for value in self.split_values()]

    def targets(self) -> list[str]:
        """Return what can be asked for of its cells: tables, and records by their pattern."""
        others = [f"{self.folder}/{value}.csv" for value in self._other_values()]
        return [*self.tables(), *others, f"{self.folder}/cells.csv", self.record_pattern]

    def expected_s(self) -> dict[str, float]:
        """Return by their records about how many seconds cells take: what they did before, or what their stage says."""
        limit_bytes = memory_limit_bytes()
        return {str(path): self._expected_s(path, cell, limit_bytes) for path, cell in self.cells.items()}

    def _expected_s(self, path: Path, cell: Any, limit_bytes: int) -> float:
        if not self.has_gpu and self.declared.needed_bytes(cell, self.of_stage.settings) > limit_bytes:
            return SKIPPED_S
        return self._taken_s(path) or self._told_s(cell)

    def _told_s(self, cell: Any) -> float:
        told_s = self.declared.expected_s(cell, self.of_stage.settings, self.has_gpu)
        return UNKNOWN_S if told_s is None else told_s

    def _taken_s(self, path: Path) -> float | None:
        """Return the seconds that a cell took with these settings, by its record; None where there is none."""
        try:
            record = read_head(path, {self.name: self.declared})
        except UserError:
            return None
        if has_failed(record) or record["settings"] != asdict(self.of_stage.settings):
            return None
        return sum(record["seconds"][name] for name in PARTS)

    def resource_names(self) -> tuple[str, ...]:
        """Return what its cells may ask of whoever runs them."""
        return (*RESOURCES, *OVER_NODES) if "nodes" in self.declared.axes else RESOURCES

    def resources(self, wildcards: Mapping[str, str]) -> dict[str, Any]:
        """Return how much of each resource a cell asks for."""
        cell = self.cell(wildcards)
        nodes = getattr(cell, "nodes", 1)
        found = {"gpu": cell.gpus * nodes, "nodes": nodes}
        if nodes == 1:
            return found
        # With `mpi` the job's command starts steps itself. It has one task on each node, and as many GPUs on each.
        gres = f"gpu:{cell.gpus}" if cell.gpus else None
        return found | dict(zip(OVER_NODES, ("srun", nodes, 0, gres), strict=True))

    def cell(self, wildcards: Mapping[str, str]) -> Any:
        """Return the cell that a record's path names."""
        words = [f"{axis}={value}" for axis, value in wildcards.items()]
        return layout.cell_named(self.declared, words, self.name)

    def cell_words(self, wildcards: Mapping[str, str]) -> list[str]:
        """Return the stage and the cell as the words of its command."""
        return [self.name, *fields.words(self.cell(wildcards))]

    def option_words(self, wildcards: Mapping[str, str]) -> list[str]:
        """Return the other words of the command: settings, implementations of the user's own, where files are kept."""
        settings = [f"--set={word}" for word in fields.words(self.of_stage.settings)]
        files = [f"--files={self.files_pattern.format(**wildcards)}"] if self.files_pattern else []
        subjects = self.declared.subjects_among(self.of_stage.subjects, self.cell(wildcards))
        return [*settings, *naming.words(subjects), *files]

    def why_stale(self, wildcards: Mapping[str, str], present: freshness.Present) -> str | None:
        """Return what has changed since a cell was measured; None where nothing has, or there is no record."""
        path = Path(self.record_pattern.format(**wildcards))
        if not path.exists():
            return None
        if is_empty(path):
            return "its record is empty"
        head, cell = read_head(path, {self.name: self.declared}), self.cell(wildcards)
        names = {subject.name for subject in self.declared.subjects_among(self.of_stage.subjects, cell)}
        subjects = [facts for facts in self.subjects if facts["name"] in names]
        return freshness.why_stale(head, self.of_stage.settings, cell.gpus, present, subjects)
