"""The plan of this run: what is measured, what is made of it, and what that needs before anything starts."""

import os
import time
from pathlib import Path

from snakemake.logging import logger

from pipeline.cells import freshness, layout, locks, sources
from pipeline.cells.config import check_something_to_write, load_plan, remarks
from pipeline.cells.failed import failures
from pipeline.cells.made import Made, newer_input
from pipeline.cells.planned import PlannedStage
from pipeline.cells.quiet_host import RUN_VARIABLE
from pipeline.cells.record import read_head
from pipeline.worker import client
from pipeline.compat import snakemake_private as private
from pipeline.errors import ending_the_run, or_exit
from pipeline.instruments.machine import identity
from pipeline.registry import stages
from snakemake_logger_plugin_cells.progress import RunPlan

RESULTS, REPORTS = Path("results"), Path("reports")
ROOT = Path(workflow.basedir).parent
GPUS_PRESENT = identity.gpu_count()
SCHEDULED = private.uses_a_scheduler(workflow)


def present():
    """Return what cells would be measured with now, as far as it can be told where a scheduler's machines measure."""
    limit = private.gpu_limit(workflow)
    software = identity.software_versions()
    if SCHEDULED:
        del software["driver"]
    gpus = GPUS_PRESENT if limit is None else min(GPUS_PRESENT, limit)
    return freshness.Present(software, gpus, allowed={} if SCHEDULED else identity.allowed())


def checked_plan():
    """Return the plan, once it is certain that it can be carried out here."""
    for stage in stages().values():
        stage.check(stages())
    plan = load_plan(config, ROOT / "config/scales", ROOT / "workflow/schemas", stages(), GPUS_PRESENT > 0)
    for line in remarks(config, plan):
        logger.warning(line)
    check_something_to_write(plan, RESULTS)
    # The machine that measures may then be another: its own parse of this file checks.
    if plan.measure and not SCHEDULED:
        layout.check_results(RESULTS, identity.machine_kind(), stages())
        locks.check_folder()
    # For every target: which are asked for is not known yet, while rules are read.
    for folder in (REPORTS, REPORTS / "figures"):
        layout.check_writable(folder)
    return plan


def planned_stages():
    """Return the stages of the plan by name."""
    return {name: PlannedStage(stages()[name], PLAN, RESULTS, GPUS_PRESENT > 0) for name in PLAN.stages}


def run_plan():
    """Return what the terminal is told of this run before its first job."""
    cells_s = {f"measure_{name}": stage.expected_s() for name, stage in STAGES.items()} if PLAN.measure else {}
    targets = [target for stage in WRITTEN for target in stage.targets()]
    return RunPlan(cells_s, ["all", WRITEUP, COURSE, REPORT_PAGE, SUMMARY, FIGURES, *targets], WHY_STALE, PLAN.scale)


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
        logger.info("snakemake: run the same command again to retry what failed")
    return bool(found)


PRESENT = present()
NEEDED = []  # the records that the targets need: filled while Snakemake plans, as is the next
WHY_STALE = {}  # what has changed since a record was measured, by its path
PLAN = or_exit(checked_plan)
STAGES = or_exit(planned_stages)
WRITTEN = [stage for stage in STAGES.values() if stage.cells]
PAGES = ("writeup.md", "course.md", "report.html", "summary.json", "figures")
WRITEUP, COURSE, REPORT_PAGE, SUMMARY, FIGURES = (f"{REPORTS}/{name}" for name in PAGES)
# Each job's own Snakemake, on another machine too, belongs to the same run.
os.environ.setdefault(RUN_VARIABLE, str(Path(f".snakemake/waited-{os.getpid()}-{time.time_ns()}").absolute()))

# A cell ends with the Snakemake that runs it. Where a scheduler runs the jobs, each has one of its own.
if not SCHEDULED:
    client.start()
# Such a job is one cell: no other would use its worker.
if private.is_a_schedulers_job(workflow):
    os.environ.setdefault(client.OFF_VARIABLE, "off")

logger.info("", extra={"run_plan": or_exit(run_plan)})  # for our logger plugin, see workflow/profiles
