"""What becomes of a run in which something failed: a second run leaves that out, and makes what the rest allows."""

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys

from snakemake_interface_logger_plugins.common import LogEvent

from pipeline.cells.failures import Failure, how_it_ended, told_by_scheduler, write_failures

MADE_OF_TABLES = ("results/{}/cells.csv", "reports/sections/{}.md", "reports/figures/{}")
LIST = ".snakemake/failures.json"


class Endings(logging.Handler):
    """Keeps what a scheduler says of jobs that failed, by the first file that each should have left."""

    def __init__(self):
        super().__init__()
        self.told = {}

    def emit(self, record):
        """Keep the message of one record, if it is of a job that failed."""
        if getattr(record, "event", None) == LogEvent.JOB_ERROR and record.rule_msg and record.output:
            self.told[record.output[0]] = told_by_scheduler(record.rule_msg)


def targets():
    """Return what is made by default: the write-up, or in a second run what the first could not make, where this can."""
    if not FAILURES.failed:
        return [WRITEUP]
    writeup = [WRITEUP] if CELL_TABLES else []
    return [path for path in (*TABLES, *CELL_TABLES, *SECTIONS, *writeup) if path in FAILURES.unmade]


def remove_outdated():
    """Remove what is there of an earlier run and can be made no more, for all that it was made of has failed."""
    kept = {*TARGETS, *FIGURES}
    for name, stage in STAGES.items():
        made = [*stage.tables_asked_for, *(pattern.format(name) for pattern in MADE_OF_TABLES)]
        for path in {*made}.intersection(FAILURES.unmade) - kept:
            shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink(missing_ok=True)


def failure(job):
    """Return what there is to say of a job that failed."""
    prefix, _, stage = job.rule.partition("_")
    stage = stage if prefix == "measure" else ""
    error = how_it_ended(Path(job.log), ENDINGS.told.get(job.outputs[0], ""))
    return Failure(job.message, stage, job.outputs, job.log, error)


def make_the_rest(jobs):
    """Start the second run for all that was not made for want of what failed; the first run tells what that is."""
    failed = sorted(map(failure, jobs), key=lambda entry: entry.what)
    failures = Failures((*FAILURES.failed, *failed), tuple(private.unmade_outputs(workflow)))
    write_failures(Path(LIST), failures)
    if failures.unmade:
        tell(f"{len(jobs)} failed: the rest is made without")
        with contextlib.suppress(KeyboardInterrupt):  # of which the second run tells
            subprocess.run(second_run())
    if not FAILURES.failed:
        for entry in read_failures(Path(LIST)).failed:
            tell(f"failed: {entry.what}: {entry.error} ({entry.log})")
        tell("the same command tries again what failed")


def second_run():
    """Return the command of the second run: of the same plan, in this process's place and under its lock."""
    settings = {**config, "failures": LIST}
    return [
        *(sys.executable, "-m", "snakemake", "--directory", os.getcwd()),
        *("--snakefile", os.path.join(workflow.basedir, "Snakefile")),
        *("--workflow-profile", "none", "--executor", "local", "--cores", str(private.local_cores(workflow))),
        *("--nolock", "--keep-going", "--rerun-incomplete", "--show-failed-logs", "--scheduler", "greedy"),
        *("--rerun-triggers", "mtime", "--logger", "cells"),
        *("--quiet", "host", "progress", "reason", "rules"),
        *("--config", *(f"{name}={json.dumps(value)}" for name, value in settings.items())),
    ]


def tell(line):
    """Print a line of the workflow's own among Snakemake's, in their order."""
    logger.info(f"snakemake: {line}")


ENDINGS = Endings()
logger.addHandler(ENDINGS)
TARGETS = targets()
if FAILURES.failed:
    remove_outdated()


onerror:
    if jobs := private.failed_jobs(workflow):
        or_exit("snakemake", make_the_rest, jobs)
