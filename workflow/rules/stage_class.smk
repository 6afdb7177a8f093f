"""A stage as its rules see it: its cells, files, tables and section, and what each needs to run."""

from pathlib import Path

from pipeline.cells import expected, fields, freshness, layout, sources
from pipeline.cells.record import is_empty, read_head
from pipeline.cells.stage import shares_host
from pipeline.compat import snakemake_private as private
from pipeline.instruments.machine import identity
from pipeline.registry import stages
from pipeline.report.publish import shown_images
from pipeline.report.written_section import HTML_SUFFIX
from pipeline.subjects import naming


class Stage:
    """A stage as its rules see it: the cells to measure, or with measure=false those that are there."""

    def __init__(self, name):
        self.declared = stages()[name]
        self.question = self.declared.question
        self.split_axis = self.declared.split_axis
        self.folder = RESULTS / name
        self.table_pattern = f"{self.folder}/{{{self.split_axis}}}.csv"
        plan = PLAN.stages[name]
        pattern = layout.cell_pattern(self.declared.cell_type)
        self.record_pattern = f"{self.folder}/cells/{pattern}.json"
        self.files_pattern = f"{self.folder}/files/{pattern}"
        self.log_pattern = f"logs/{name}/{pattern}.log"
        self.cells = self.planned(plan.cells) if PLAN.measure else layout.recorded_cells(RESULTS, self.declared)
        self.settings, self.grids = plan.settings, plan.grids
        self.settings_words = [f"--set={word}" for word in fields.words(plan.settings)]
        self.subjects = naming.facts(plan.subjects) if PLAN.measure and plan.cells else []
        self.subjects_words = naming.words(plan.subjects)
        package = self.declared.package
        # With the formulas and rules by which columns are derived.
        self.declarations = sources.reached_modules(f"{package}.cell", f"{package}.rows")
        self.table = Made(self.table_pattern, {"records": self.records_of}, TABULATOR | self.declarations)

    def planned(self, cells):
        """Return the cells to measure by the paths of their records."""
        return {layout.record_path(RESULTS, self.folder.name, cell): cell for cell in cells}

    def outputs(self):
        """Return what measuring a cell leaves: its record and, where the stage keeps any, a folder of files."""
        record = {"record": self.record_pattern}
        return record | {"files": directory(self.files_pattern)} if self.declared.keeps_files else record

    def records(self):
        """Return the records that the stage's tables are made of."""
        return list(map(str, self.cells))

    def records_of(self, wildcards):
        """Return the records of one table: those with its value on the split axis.

        A value that is asked for by name, and of which the scale has no cell, is measured on the quickest grid.
        """
        value = wildcards[self.split_axis]
        if value in self.split_values():
            return [str(path) for path, cell in self.cells.items() if self.split_value(cell) == value]
        asked = (self.declared, self.grids, self.split_axis, value, self.settings, GPUS_PRESENT > 0)
        return list(map(str, self.planned(expected.quickest_grid(*asked))))

    def split_value(self, cell):
        """Return a cell's value on the split axis, as text."""
        return fields.text(getattr(cell, self.split_axis))

    def split_values(self):
        """Return the values on the split axis: the names of the stage's tables."""
        return sorted({self.split_value(cell) for cell in self.cells.values()})

    def other_values(self):
        """Return what else of the split axis can be asked for, where there is measuring: see `value_patterns`."""
        return fields.value_patterns(self.declared.cell_type, self.split_axis) if PLAN.measure else {}

    def value_pattern(self):
        """Return, as a regular expression, the names of the tables that can be asked for."""
        return "|".join([one_of(self.split_values()), *self.other_values().values()])

    def tables(self):
        """Return the stage's tables."""
        return [f"{self.folder}/{value}.csv" for value in self.split_values()]

    def targets(self):
        """Return what can be asked for of the stage: tables, section, figures, and records by their pattern."""
        name = self.folder.name
        pages = [f"{REPORTS}/sections/{name}.md", f"{REPORTS}/figures/{name}"]
        more = [f"{self.folder}/{value}.csv" for value in self.other_values()]
        return [*self.tables(), *more, f"{self.folder}/cells.csv", *pages, self.record_pattern]

    def expected_s(self):
        """Return about how long each cell takes, by its record."""
        return expected.expected_s(self.declared, self.cells, self.settings, GPUS_PRESENT > 0)

    def records_of_section(self):
        """Return the records that the section is made of: the stage's own, and those of stages that it reads too."""
        names = [name for name in (self.declared.name, *self.declared.reads) if name in STAGES]
        return [record for name in names for record in STAGES[name].records()]

    def cell(self, wildcards):
        """Return the cell that a record's path names."""
        words = [f"{axis}={value}" for axis, value in wildcards.items()]
        return layout.cell_named(self.declared, words, self.declared.name)

    def cell_words(self, wildcards):
        """Return the cell as the words of its command."""
        return fields.words(self.cell(wildcards))

    def threads(self, wildcards):
        """Return how many cores the cell takes: all, so that nothing runs beside it, unless it may share the host.

        A scheduler's profile says how many cores its jobs get.
        """
        shared = shares_host(self.cell(wildcards), on_gpu=GPUS_PRESENT > 0)
        return 1 if shared or SCHEDULED else workflow.cores

    def resources(self):
        """Return the resources that a cell asks for, as functions of its wildcards."""
        names = ("gpu", "nodes", *(over_nodes(2, 1) if "nodes" in self.declared.axes else ()))
        return {name: lambda wildcards, name=name: self.resource(wildcards, name) for name in names}

    def resource(self, wildcards, name):
        """Return how much of one resource the cell asks for; None: it says nothing of it."""
        cell = self.cell(wildcards)
        nodes = getattr(cell, "nodes", 1)
        asked = {"gpu": cell.gpus * nodes, "nodes": nodes, **(over_nodes(nodes, cell.gpus) if nodes > 1 else {})}
        return asked.get(name)

    @ends_the_run
    def measured_again_if_stale(self, wildcards):
        """Return no input: a cell has none. Where its record is stale, have Snakemake measure it again."""
        cell, path = self.cell(wildcards), Path(self.record_pattern.format(**wildcards))
        NEEDED.append(path)
        if path.exists() and (why := self.why_stale(path, cell)):
            WHY_STALE[str(path)] = why
            private.force(workflow, [str(path)])
        return []

    def why_stale(self, path, cell):
        """Return what has changed since a record was measured; None where nothing has."""
        if is_empty(path):
            return "its record is empty"
        return freshness.why_stale(read_head(path, stages()), self.settings, cell.gpus, PRESENT, self.subjects)

    def section(self):
        """Return the section as what is made; it is written again also where a figure that it shows is gone.

        Snakemake sees the folder of figures, not what is in it.
        """
        name = self.folder.name
        package = f"{self.declared.package}.report"
        code = self.declarations | sources.reached_modules(
            f"{package}.section", f"{package}.charts", "pipeline.report.writeup"
        )
        path = f"{REPORTS}/sections/{name}.md"
        # The parts show all figures, those of the first screen too.
        parts, html_parts = (Path(path).with_suffix(suffix) for suffix in (".json", HTML_SUFFIX))
        return Made(
            path,
            {"records": self.records_of_section()},
            code,
            sources.data_files(name for name in code if name.startswith(package)),
            beside=lambda: (parts, html_parts, *(REPORTS / image for image in shown_images(parts))),
        )


def over_nodes(nodes, gpus):
    """Return what a cell over several nodes asks of Slurm too, as Snakemake's executor for it names it.

    With `mpi` the job's command starts steps itself. It has one task on each node, and as many GPUs on each.
    """
    return {"mpi": "srun", "tasks": nodes, "tasks_per_gpu": 0, "gres": f"gpu:{gpus}" if gpus else None}
