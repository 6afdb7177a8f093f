"""Snakemake's private names that this project uses, each with its reason and the public alternative that is missing.

Of `workflow`, the variable that rules see, only its place (`basedir`) and number of `cores` are documented.
`tests/compat/test_snakemake_private.py` fails if an upgrade has moved one of the rest. Importing this module does not
import Snakemake, which would take a second.
"""

import _thread
from typing import Any


def gpu_limit(workflow: Any) -> int | None:
    """Return the value of `--resources gpu=`, None without it; only what each job gets is public."""
    limits = workflow.global_resources
    return limits["gpu"].value if "gpu" in limits else None


def uses_a_scheduler(workflow: Any) -> bool:
    """Tell whether other machines run the jobs; only the executor's name in logs is public."""
    return workflow.resource_settings.nodes is not None


def is_a_schedulers_job(workflow: Any) -> bool:
    """Tell whether this Snakemake runs inside a scheduler's job; no documented variable says so."""
    return workflow.remote_exec


def given_configfiles(workflow: Any) -> list[Any]:
    """Return the files of `--configfile`; only the `config` that results from them is public."""
    return list(workflow.overwrite_configfiles)


def end_at_every_sigterm() -> None:
    """Have Snakemake heed SIGTERM at any moment; call this before its scheduler starts.

    Its own handler (9.27) takes a lock. If the interrupted code holds that lock, as it may while a job ends or a second
    SIGTERM arrives, it waits forever. In another thread, it waits until the interrupted code has gone on.
    """
    from snakemake.scheduling.job_scheduler import JobScheduler

    heed = JobScheduler.exit_gracefully

    def heed_in_a_thread(scheduler: Any, *_: Any) -> None:
        # Not threading.Thread: starting one takes locks too.
        _thread.start_new_thread(heed, (scheduler,))

    if heed.__module__ != __name__:
        JobScheduler.exit_gracefully = heed_in_a_thread
