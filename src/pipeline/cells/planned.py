"""A stage as planned by a run: its cells with their paths, commands and times, its tables, and what is stale."""

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

# Expected seconds of a cell whose stage does not say, and of one that does not fit into the host's memory.
UNKNOWN_S, SKIPPED_S = 10.0, 0.5
PARTS = ("start_up", "set_up", "measuring")
# The resources that a cell may request; those for several nodes are named as in Snakemake's Slurm executor.
RESOURCES, MULTI_NODE_RESOURCES = ("gpu", "nodes"), ("mpi", "tasks", "tasks_per_gpu", "gres")


class PlannedStage:
    """A stage's cells to measure or, if the run does not measure, those recorded in the results folder."""

    def __init__(self, stage: Stage, plan: Plan, results: Path, has_gpu: bool) -> None:
        self.stage, self.plan, self.stage_plan, self.has_gpu = stage, plan, plan.stages[stage.name], has_gpu
        self.name, self.package, self.question = stage.name, stage.package, stage.question
        self.split_axis, self.results, self.folder = stage.split_axis, results, results / stage.name
        pattern = layout.cell_pattern(stage.cell_type)
        self.record_pattern, self.log_pattern = f"{self.folder}/cells/{pattern}.json", f"logs/{self.name}/{pattern}.log"
        self.files_pattern = f"{self.folder}/files/{pattern}" if stage.keeps_files else ""
        is_measured = plan.measure and bool(self.stage_plan.cells)
        self.cells = self._paths(self.stage_plan.cells) if plan.measure else layout.recorded_cells(results, stage)
        self.subjects = naming.facts(self.stage_plan.subjects) if is_measured else []

    def _paths(self, cells: Iterable[Any]) -> dict[Path, Any]:
        return {layout.record_path(self.results, self.name, cell): cell for cell in cells}

    @cached_property
    def declarations(self) -> set[str]:
        """The modules that declare cells and rows, with the formulas and rules that derive columns."""
        return freshness.deriving_modules(self.package)

    def records(self) -> list[str]:
        """Return the records that the stage's tables are made from."""
        return list(map(str, self.cells))

    def missing(self) -> list[dict[str, Any]]:
        """Return the stage and axes of each cell that the scale asks for but that was not measured."""
        planned = self._paths(self.stage_plan.cells)
        return [{"stage": self.name, "cell": asdict(cell)} for path, cell in planned.items() if path not in self.cells]

    def records_of(self, wildcards: Mapping[str, str]) -> list[str]:
        """Return the records of one table; a value without cells in the scale is measured on the quickest grid."""
        value = dict(wildcards.items())[self.split_axis]
        if value in self.split_values():
            return [str(path) for path, cell in self.cells.items() if self._split_value(cell) == value]
        return list(map(str, self._paths(self._quickest_grid(value))))

    def _quickest_grid(self, value: str) -> list[Any]:
        """Return the cells of the grid that takes the least time with this one value on the split axis."""
        candidates, complaint = [], UserError(f"{self.name} has no grid")
        for grid in self.stage_plan.grids:
            try:
                candidates.append(fields.expand(self.stage.cell_type, [{**grid, self.split_axis: [value]}], self.name))
            except UserError as error:  # this grid cannot be combined with the value
                complaint = error
        if not candidates:
            raise complaint
        return min(candidates, key=lambda cells: sum(map(self._estimated_s, cells)))

    def _split_value(self, cell: Any) -> str:
        return fields.text(getattr(cell, self.split_axis))

    def split_values(self) -> list[str]:
        """Return the values on the split axis: the names of the stage's tables."""
        return sorted({self._split_value(cell) for cell in self.cells.values()})

    def _other_values(self) -> dict[str, str]:
        """Return which other values of the split axis can be requested, if the run measures: see `value_patterns`."""
        return fields.value_patterns(self.stage.cell_type, self.split_axis) if self.plan.measure else {}

    def value_pattern(self) -> str:
        """Return a regular expression for the names of tables that can be requested."""
        return "|".join([*map(re.escape, self.split_values()), *self._other_values().values()])

    def tables(self) -> list[str]:
        """Return the stage's tables."""
        return [f"{self.folder}/{value}.csv" for value in self.split_values()]

    def targets(self) -> list[str]:
        """Return the targets that can be requested: tables, and the pattern of records."""
        others = [f"{self.folder}/{value}.csv" for value in self._other_values()]
        return [*self.tables(), *others, f"{self.folder}/cells.csv", self.record_pattern]

    def expected_s(self) -> dict[str, float]:
        """Return about how many seconds each cell takes, by record path: its last time, else its stage's estimate."""
        limit_bytes = memory_limit_bytes()
        return {str(path): self._expected_s(path, cell, limit_bytes) for path, cell in self.cells.items()}

    def _expected_s(self, path: Path, cell: Any, limit_bytes: int) -> float:
        if not self.has_gpu and self.stage.needed_bytes(cell, self.stage_plan.settings) > limit_bytes:
            return SKIPPED_S
        return self._recorded_s(path) or self._estimated_s(cell)

    def _estimated_s(self, cell: Any) -> float:
        estimate_s = self.stage.expected_s(cell, self.stage_plan.settings, self.has_gpu)
        return UNKNOWN_S if estimate_s is None else estimate_s

    def _recorded_s(self, path: Path) -> float | None:
        """Return the seconds that a cell took with these settings, from its record; None if it has none."""
        try:
            record = read_head(path, {self.name: self.stage})
        except UserError:
            return None
        if has_failed(record) or record["settings"] != asdict(self.stage_plan.settings):
            return None
        return sum(record["seconds"][name] for name in PARTS)

    def resource_names(self) -> tuple[str, ...]:
        """Return the names of the resources that its cells may request."""
        return (*RESOURCES, *MULTI_NODE_RESOURCES) if "nodes" in self.stage.axes else RESOURCES

    def resources(self, wildcards: Mapping[str, str]) -> dict[str, Any]:
        """Return how much of each resource a cell requests."""
        cell = self.cell(wildcards)
        nodes = getattr(cell, "nodes", 1)
        found = {"gpu": cell.gpus * nodes, "nodes": nodes}
        if nodes == 1:
            return found
        # With `mpi` the job's command starts steps itself. The job has one task and the cell's GPUs on each node.
        gres = f"gpu:{cell.gpus}" if cell.gpus else None
        return found | dict(zip(MULTI_NODE_RESOURCES, ("srun", nodes, 0, gres), strict=True))

    def cell(self, wildcards: Mapping[str, str]) -> Any:
        """Return the cell that a record's path names."""
        words = [f"{axis}={value}" for axis, value in wildcards.items()]
        return layout.cell_named(self.stage, words, self.name)

    def cell_words(self, wildcards: Mapping[str, str]) -> list[str]:
        """Return the stage and the cell as the words of its command."""
        return [self.name, *fields.words(self.cell(wildcards))]

    def option_words(self, wildcards: Mapping[str, str]) -> list[str]:
        """Return the other words of the command: settings, the user's implementations, the folder for files."""
        settings = [f"--set={word}" for word in fields.words(self.stage_plan.settings)]
        files = [f"--files={self.files_pattern.format(**wildcards)}"] if self.files_pattern else []
        subjects = self.stage.subjects_among(self.stage_plan.subjects, self.cell(wildcards))
        return [*settings, *naming.words(subjects), *files]

    def why_stale(self, wildcards: Mapping[str, str], present: freshness.CurrentSetup) -> str | None:
        """Return what has changed since a cell was measured; None if nothing has or there is no record."""
        path = Path(self.record_pattern.format(**wildcards))
        if not path.exists():
            return None
        if is_empty(path):
            return "its record is empty"
        head, cell = read_head(path, {self.name: self.stage}), self.cell(wildcards)
        names = {subject.name for subject in self.stage.subjects_among(self.stage_plan.subjects, cell)}
        subjects = [facts for facts in self.subjects if facts["name"] in names]
        return freshness.why_stale(head, self.stage_plan.settings, cell.gpus, present, subjects)
