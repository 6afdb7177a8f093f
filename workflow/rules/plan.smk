"""Plan this run: what to measure and make; check it and start the worker before the first job."""

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
from pipeline.errors import exit_on_error, or_exit
from pipeline.instruments.machine import identity
from pipeline.registry import stages
from snakemake_logger_plugin_cells.progress import RunPlan

RESULTS, REPORTS = Path("results"), Path("reports")
ROOT = Path(workflow.basedir).parent
GPUS_PRESENT = identity.gpu_count()
SCHEDULED = private.uses_a_scheduler(workflow)


def present():
    """Return what cells would be measured with now, as far as known under a scheduler."""
    limit = private.gpu_limit(workflow)
    software = identity.software_versions()
    if SCHEDULED:
        del software["driver"]
    gpus = GPUS_PRESENT if limit is None else min(GPUS_PRESENT, limit)
    return freshness.CurrentSetup(software, gpus, allowed={} if SCHEDULED else identity.allowed())


def checked_plan():
    """Return the plan, after checking that this machine can carry it out."""
    for stage in stages().values():
        stage.check(stages())
    plan = load_plan(config, ROOT / "config/scales", ROOT / "workflow/schemas", stages(), GPUS_PRESENT > 0)
    for line in remarks(config, plan):
        logger.warning(line)
    check_something_to_write(plan, RESULTS)
    # Under a scheduler, another machine may measure: it checks when it reads this file itself.
    if plan.measure and not SCHEDULED:
        layout.check_results(RESULTS, identity.machine_kind(), stages())
        locks.check_folder()
    # Checked for any targets, because the requested ones are not known while rules are read.
    for folder in (REPORTS, REPORTS / "figures"):
        layout.check_writable(folder)
    return plan


def planned_stages():
    """Return the stages of the plan by name."""
    return {name: PlannedStage(stages()[name], PLAN, RESULTS, GPUS_PRESENT > 0) for name in PLAN.stages}


def run_plan():
    """Return what the logger plugin needs to know of this run before the first job."""
    cells_s = {f"measure_{name}": stage.expected_s() for name, stage in STAGES.items()} if PLAN.measure else {}
    targets = [target for stage in WRITTEN for target in stage.targets()]
    return RunPlan(cells_s, ["all", WRITEUP, COURSE, REPORT_PAGE, SUMMARY, FIGURES, *targets], WHY_STALE, PLAN.scale)


def outdated():
    """Return the digests of code that measured the rendered cells and has changed since."""
    if PLAN.measure:  # cells measured by changed code are measured again
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
NEEDED = []  # the records that the targets need; filled while Snakemake plans, like WHY_STALE
WHY_STALE = {}  # what has changed since a record was measured, by its path
PLAN = or_exit(checked_plan)
STAGES = or_exit(planned_stages)
WRITTEN = [stage for stage in STAGES.values() if stage.cells]
PAGES = ("writeup.md", "course.md", "report.html", "summary.json", "figures")
WRITEUP, COURSE, REPORT_PAGE, SUMMARY, FIGURES = (f"{REPORTS}/{name}" for name in PAGES)
# Each job's own Snakemake, even on another machine, belongs to the same run.
os.environ.setdefault(RUN_VARIABLE, str(Path(f".snakemake/waited-{os.getpid()}-{time.time_ns()}").absolute()))

# A cell ends with the Snakemake that runs it. Under a scheduler, each job has its own Snakemake.
if not SCHEDULED:
    client.start()
# A scheduler's job is one cell: no other would use its worker.
if private.is_a_schedulers_job(workflow):
    os.environ.setdefault(client.OFF_VARIABLE, "off")

logger.info("", extra={"run_plan": or_exit(run_plan)})  # for our logger plugin, see workflow/profiles
