"""The plan of this run, and what the rules of every stage share."""

import functools
import os
import re
import sys
import time
import traceback
from pathlib import Path

from snakemake.logging import logger

from pipeline.cells import expected, fields, freshness, layout, locks, orphans, preflight, sources
from pipeline.cells.worker import client
from pipeline.cells.config import check_something_to_write, config_words, idle_overrides, idle_subjects, load_plan
from pipeline.cells.disk import DISK_FULL
from pipeline.cells.failures import Failure, Failures, how_it_ended, read_failures, write_failures
from pipeline.cells.quiet_host import RUN_VARIABLE
from pipeline.cells.record import read_head
from pipeline.cells.stage import shares_host
from pipeline.compat import snakemake_private as private
from pipeline.errors import or_exit
from pipeline.instruments.machine import identity
from pipeline.registry import stages
from pipeline.report.captions import captions
from pipeline.report.publish import missing_images
from pipeline.report.written_section import HTML_SUFFIX
from pipeline.subjects import naming
from snakemake_logger_plugin_cells.progress import RunPlan

RESULTS = Path("results")
REPORTS = Path("reports")
ROOT = Path(workflow.basedir).parent
GPUS_PRESENT = identity.gpu_count()


SCHEDULED = private.uses_a_scheduler(workflow)


def present():
    """Return what cells would be measured with now, as far as it can be told where a scheduler's machines measure."""
    limit = private.gpu_limit(workflow)
    software = identity.software_versions()
    if SCHEDULED:
        del software["driver"]
    return freshness.Present(software, GPUS_PRESENT if limit is None else min(GPUS_PRESENT, limit))


def ends_the_run(function):
    """Have an error of an input function end the run: Snakemake itself would take what is there for up to date."""

    @functools.wraps(function)
    def called(*arguments):
        try:
            return or_exit("snakemake", function, *arguments)
        except Exception:
            traceback.print_exc()
            sys.exit(1)

    return called


def checked_plan():
    """Return the plan, once it is certain that it can be carried out here."""
    for stage in stages().values():
        stage.check(stages())
    plan = load_plan(config, ROOT / "config/scales", ROOT / "workflow/schemas", stages(), GPUS_PRESENT > 0)
    for stage in idle_overrides(config["overrides"], plan) if plan.measure else ():
        logger.warning(
            f"overrides: {stage} is not measured, for scale '{plan.scale}' has no cell of it: give it `grids`"
        )
    for name in idle_subjects(plan) if plan.measure else ():
        logger.warning(f"subjects: {name} is not measured, for this run has no cell of a stage that takes its kind")
    check_something_to_write(plan, RESULTS)
    # The machine that measures may then be another: its own parse of this file checks.
    if plan.measure and not FAILURES.failed and not SCHEDULED:
        preflight.check_results(RESULTS, identity.machine_kind(), stages())
        locks.check_folder()
    # For every target: which are asked for is not known yet, while rules are read.
    for folder in (REPORTS, REPORTS / "sections", REPORTS / "figures"):
        preflight.check_writable(folder)
    return plan


class Stage:
    """A stage as its rules see it: the cells to measure, or with measure=false those that are there.

    What failed in the run that this one ends is not among its cells and tables.
    """

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
        cells = self.planned(plan.cells) if PLAN.measure else layout.recorded_cells(RESULTS, self.declared)
        self.cells = {path: cells[path] for path in FAILURES.without(cells)}
        self.tables_asked_for = self.tables_of(cells.values())
        self.settings = plan.settings
        self.settings_words = [f"--set={word}" for word in fields.words(plan.settings)]
        self.subjects = naming.facts(plan.subjects) if PLAN.measure and plan.cells else []
        self.subjects_words = naming.words(plan.subjects)
        package = self.declared.package
        self.declarations = {f"{package}.cell", f"{package}.rows", "pipeline.cells.timed_rows"}
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
        """Return the records of one table: those with its value on the split axis."""
        value = wildcards[self.split_axis]
        return [str(path) for path, cell in self.cells.items() if self.split_value(cell) == value]

    def split_value(self, cell):
        """Return a cell's value on the split axis, as text."""
        return fields.text(getattr(cell, self.split_axis))

    def split_values(self):
        """Return the values on the split axis: the names of the stage's tables."""
        return sorted({self.split_value(cell) for cell in self.cells.values()})

    def tables_of(self, cells):
        """Return the tables that these cells are told in."""
        return sorted({f"{self.folder}/{self.split_value(cell)}.csv" for cell in cells})

    def tables(self):
        """Return the stage's tables."""
        return FAILURES.without(self.tables_of(self.cells.values()))

    def targets(self):
        """Return what can be asked for of the stage: tables, section, figures, and records by their pattern."""
        name = self.folder.name
        pages = [f"{REPORTS}/sections/{name}.md", f"{REPORTS}/figures/{name}"]
        return [*self.tables(), f"{self.folder}/cells.csv", *pages, self.record_pattern]

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
        if path.exists() and (why := self.why_stale(path, cell)):
            WHY_STALE[str(path)] = why
            private.force(workflow, [str(path)])
        return []

    def why_stale(self, path, cell):
        """Return what has changed since a record was measured; None where nothing has."""
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
            is_damaged=lambda: not (parts.exists() and html_parts.exists()) or missing_images(parts, REPORTS),
        )


def over_nodes(nodes, gpus):
    """Return what a cell over several nodes asks of Slurm too, as Snakemake's executor for it names it.

    With `mpi` the job's command starts steps itself. It has one task on each node, and as many GPUs on each.
    """
    return {"mpi": "srun", "tasks": nodes, "tasks_per_gpu": 0, "gres": f"gpu:{gpus}" if gpus else None}


class Made:
    """A table or a page as its rule sees it: what it is made of, and whether it has to be made again.

    path: where it is; inputs: its files by name, or functions of wildcards that give them; code, data and words: the
    modules that make it, the other files that they read, and words of their command.
    """

    def __init__(self, path, inputs, code, data=(), words=(), is_damaged=lambda: False):
        self.path, self.given, self.is_damaged = path, inputs, is_damaged
        self.code, self.data, self.words = code, data, words
        folder, _, name = path.rpartition("/")
        self.recipe_path = f"{folder}/.{name}.recipe"

    @ends_the_run
    def inputs(self, wildcards):
        """Return the input files, and have Snakemake make what it would not miss, or not see to be stale, by itself.

        Where this is there, Snakemake would not miss its inputs, so that a record that is gone would never be measured
        again; nor does it know of modules and templates. Unlike --forcerun, this makes only what the targets need.
        """
        inputs = {name: paths(wildcards) if callable(paths) else paths for name, paths in self.given.items()}
        made, paths = Path(self.path.format(**wildcards)), sum(inputs.values(), [])
        if made.exists():
            private.force(workflow, [path for path in paths if not Path(path).exists()])
            if self.is_damaged() or self.former_recipe(wildcards) != self.recipe(wildcards, paths):
                private.force(workflow, [str(made)])
        return inputs

    def recipe(self, wildcards, input):
        """Return the digest of how this is made now."""
        return freshness.recipe(sources.code_digest(self.code), self.data, input, self.words)

    def former_recipe(self, wildcards):
        """Return the digest of how this was made; None where that cannot be told."""
        path = Path(self.recipe_path.format(**wildcards))
        return path.read_text().strip() if path.is_file() else None


def figure_captions(wildcards, output):
    """Return the captions of a section's figures for Snakemake's own report; none before the section is written."""
    return captions(Path(output.parts))


def files_words(wildcards, output):
    """Return the words of the measuring command that name the folder of a cell's files, if its stage keeps any."""
    return [f"--files={output.files}"] if "files" in output.keys() else []


def run_plan():
    """Return what the terminal is told of this run before its first job."""
    cells_s = {f"measure_{name}": stage.expected_s() for name, stage in STAGES.items()} if PLAN.measure else {}
    targets = [target for name in STAGES_TO_WRITE for target in STAGES[name].targets()]
    return RunPlan(cells_s, ["all", WRITEUP, REPORT_PAGE, SUMMARY, *targets], WHY_STALE)


def one_of(words):
    """Return the constraint of a wildcard that stands for one of these words."""
    return "|".join(map(re.escape, words))


def stage_records(wildcards):
    """Return the records of the stage that a path names."""
    return STAGES[wildcards.stage].records()


def outdated():
    """Return the digests of the code that measured what is rendered, of all code that has changed since."""
    if PLAN.measure:  # what such code measured is measured again
        return []
    heads = [read_head(path, stages()) for stage in STAGES.values() for path in stage.cells]
    return sorted({head["code"]["digest"] for head in heads if freshness.has_changed_code(head)})


# Given by a run in which something failed to the one that makes what can be made of the rest: see failed.smk.
FAILURES_FILE = config.pop("failures", None)
FAILURES = or_exit("snakemake", read_failures, Path(FAILURES_FILE)) if FAILURES_FILE else Failures()
PRESENT = present()
TABULATOR = sources.reached_modules("pipeline.cells.tabulate")
WHY_STALE = {}  # what has changed since a record was measured, by its path: filled while Snakemake plans
PLAN = or_exit("snakemake", checked_plan)
STAGES = or_exit("snakemake", lambda: {name: Stage(name) for name in PLAN.stages})
STAGES_TO_WRITE = [name for name, stage in STAGES.items() if stage.records()]
TABLES = [table for name in STAGES_TO_WRITE for table in STAGES[name].tables()]
CELL_TABLES = FAILURES.without(f"results/{name}/cells.csv" for name in STAGES_TO_WRITE)
STAGES_WITH_TABLES = [name for name in STAGES_TO_WRITE if STAGES[name].tables()]
SECTIONS = FAILURES.without(f"reports/sections/{name}.md" for name in STAGES_WITH_TABLES)
FIGURES = FAILURES.without(f"reports/figures/{name}" for name in STAGES_WITH_TABLES)
WRITEUP, REPORT_PAGE, SUMMARY = (f"{REPORTS}/{name}" for name in ("writeup.md", "report.html", "summary.json"))
CELL_TABLE = Made("results/{stage}/cells.csv", {"records": stage_records}, TABULATOR)
DISK_IS_FULL = "snakemake: the disk is full, nothing more is measured: make room and run the same command again"
# Each job's own Snakemake, on another machine too, belongs to the same run.
os.environ.setdefault(RUN_VARIABLE, f"{os.getpid()}-{time.time_ns()}")

# A cell ends with the Snakemake that runs it. Where a scheduler runs the jobs, each has one of its own.
if not SCHEDULED:
    orphans.end_with_this_process()
# Such a job is one cell: no other would use its worker.
if private.is_a_schedulers_job(workflow):
    os.environ.setdefault(client.OFF_VARIABLE, "off")

logger.info("", extra={"run_plan": or_exit("snakemake", run_plan)})  # for our logger plugin, see workflow/profiles
