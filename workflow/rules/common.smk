"""The plan of this run, and what the rules of every stage share."""

import os
import re
import time
from pathlib import Path

from snakemake.logging import logger

from pipeline.cells import freshness, locks, orphans, preflight, sources
from pipeline.cells.config import check_something_to_write, idle_overrides, idle_subjects, load_plan, unmodelled_sizes
from pipeline.cells.failed import failures
from pipeline.cells.quiet_host import RUN_VARIABLE
from pipeline.cells.record import read_head
from pipeline.cells.worker import client
from pipeline.compat import snakemake_private as private
from pipeline.errors import or_exit
from pipeline.instruments.machine import identity
from pipeline.registry import stages
from pipeline.report.captions import captions
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
    return freshness.Present(
        software,
        GPUS_PRESENT if limit is None else min(GPUS_PRESENT, limit),
        allowed={} if SCHEDULED else identity.allowed(),
    )


def checked_plan():
    """Return the plan, once it is certain that it can be carried out here."""
    for stage in stages().values():
        stage.check(stages())
    plan = load_plan(config, ROOT / "config/scales", ROOT / "workflow/schemas", stages(), GPUS_PRESENT > 0)
    for stage in idle_overrides(config["overrides"], plan) if plan.measure else ():
        logger.warning(
            f"overrides: {stage} is not measured, for scale '{plan.scale}' has no cell of it: give it `grids`"
        )
    for line in naming.told(config.get("subjects"), plan.subjects) if plan.measure else ():
        logger.warning(f"subjects: {line}")
    for name in idle_subjects(plan) if plan.measure else ():
        logger.warning(f"subjects: {name} is not measured, for this run has no cell of a stage that takes its kind")
    for line in unmodelled_sizes(plan) if plan.measure else ():
        logger.warning(line)
    check_something_to_write(plan, RESULTS)
    # The machine that measures may then be another: its own parse of this file checks.
    if plan.measure and not SCHEDULED:
        preflight.check_results(RESULTS, identity.machine_kind(), stages())
        locks.check_folder()
    # For every target: which are asked for is not known yet, while rules are read.
    for folder in (REPORTS, REPORTS / "sections", REPORTS / "figures"):
        preflight.check_writable(folder)
    return plan


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
    return RunPlan(cells_s, ["all", WRITEUP, REPORT_PAGE, SUMMARY, *targets], WHY_STALE, PLAN.scale)


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


def tell_failures():
    """Print a line for each cell of this run that failed; return whether any did."""
    found = [] if private.is_a_schedulers_job(workflow) else failures(NEEDED, stages())
    for line in found:
        logger.info(f"snakemake: failed: {line}")
    if found:
        logger.info("snakemake: the same command tries again what failed")
    return bool(found)


PRESENT = present()
# And the rule by which times are unstable.
TABULATOR = sources.reached_modules("pipeline.cells.tabulate", "pipeline.cells.timed_rows")
NEEDED = []  # the records that the targets need, and why some are stale, by path: filled while Snakemake plans
WHY_STALE = {}  # what has changed since a record was measured, by its path: filled while Snakemake plans
PLAN = or_exit("snakemake", checked_plan)
STAGES = or_exit("snakemake", lambda: {name: Stage(name) for name in PLAN.stages})
STAGES_TO_WRITE = [name for name, stage in STAGES.items() if stage.records()]
TABLES = [table for name in STAGES_TO_WRITE for table in STAGES[name].tables()]
CELL_TABLES = [f"results/{name}/cells.csv" for name in STAGES_TO_WRITE]
SECTIONS = [f"reports/sections/{name}.md" for name in STAGES_TO_WRITE]
FIGURES = [f"reports/figures/{name}" for name in STAGES_TO_WRITE]
WRITEUP, REPORT_PAGE, SUMMARY = (f"{REPORTS}/{name}" for name in ("writeup.md", "report.html", "summary.json"))
CELL_TABLE = Made("results/{stage}/cells.csv", {"records": stage_records}, TABULATOR)
# Each job's own Snakemake, on another machine too, belongs to the same run.
os.environ.setdefault(RUN_VARIABLE, f"{os.getpid()}-{time.time_ns()}")

# A cell ends with the Snakemake that runs it. Where a scheduler runs the jobs, each has one of its own.
if not SCHEDULED:
    orphans.end_with_this_process()
# Such a job is one cell: no other would use its worker.
if private.is_a_schedulers_job(workflow):
    os.environ.setdefault(client.OFF_VARIABLE, "off")

logger.info("", extra={"run_plan": or_exit("snakemake", run_plan)})  # for our logger plugin, see workflow/profiles
