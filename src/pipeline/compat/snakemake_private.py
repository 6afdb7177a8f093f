"""Snakemake's private names: all that this project uses, each with its reason and the public way that is missing.

Documented of a `workflow`, the variable that rules see, is only where it lies (`basedir`) and how many `cores` it has.
`tests/compat/test_snakemake_private.py` fails by name where an upgrade has moved one of the rest. This module imports
nothing of Snakemake, whose import takes a second.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FailedJob:
    """A job that failed: its rule, its message, the paths that it should have left, its log."""

    rule: str
    message: str
    outputs: tuple[str, ...]
    log: str


def force(workflow: Any, paths: Iterable[str]) -> None:
    """Have the jobs that make these files run, provided that the targets need the files; for input functions.

    Public is `--forcerun`, which runs them whether they are needed or not, and takes no answer that depends on a cell.
    """
    workflow.dag.forcefiles.update(paths)


def failed_jobs(workflow: Any) -> list[FailedJob]:
    """Return the jobs that failed, once all have run that do not need them: none where the run was stopped before.

    Public in `onerror` is only the path of the log.
    """
    return [
        FailedJob(job.rule.name, job.message, tuple(map(str, job.output)), str(job.log))
        for job in _failed_jobs(workflow)
    ]


def unmade_outputs(workflow: Any) -> list[str]:
    """Return the files that were not made for want of what failed, which are not listed themselves.

    Public is only `--summary`, of a new run.
    """
    failed = _failed_jobs(workflow)
    return sorted(str(path) for job in workflow.dag.needrun_jobs() if job not in failed for path in job.output)


def _failed_jobs(workflow: Any) -> list[Any]:
    scheduler = workflow.scheduler
    if scheduler.running or workflow.dag.ready_jobs:
        return []
    return [job for entry in scheduler.failed for job in (entry.jobs if entry.is_group() else [entry])]


def gpu_limit(workflow: Any) -> int | None:
    """Return what `--resources gpu=` says; None without it. Public is only what each job gets."""
    limits = workflow.global_resources
    return limits["gpu"].value if "gpu" in limits else None


def uses_a_scheduler(workflow: Any) -> bool:
    """Tell whether other machines run the jobs. Public is only the executor's name, in logs."""
    return workflow.resource_settings.nodes is not None


def is_a_schedulers_job(workflow: Any) -> bool:
    """Tell whether this Snakemake is one that a scheduler's job runs; no documented variable says so."""
    return workflow.remote_exec


def local_cores(workflow: Any) -> int:
    """Return how many cores were given to local jobs, 1 where none were; documented `cores` fails without."""
    return workflow.resource_settings.cores or 1


def given_configfiles(workflow: Any) -> list[Any]:
    """Return the files of `--configfile`; public is only what they make of `config`."""
    return list(workflow.overwrite_configfiles)
