"""Snakemake's private names: all that this project uses, each with its reason and the public way that is missing.

Documented of a `workflow`, the variable that rules see, is only where it lies (`basedir`) and how many `cores` it has.
`tests/compat/test_snakemake_private.py` fails by name where an upgrade has moved one of the rest. This module imports
nothing of Snakemake, whose import takes a second.
"""

from typing import Any


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


def given_configfiles(workflow: Any) -> list[Any]:
    """Return the files of `--configfile`; public is only what they make of `config`."""
    return list(workflow.overwrite_configfiles)
