"""Measure one cell in this process and build its record."""

import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from pipeline.cells import freshness, own_cores
from pipeline.cells.devices import TooFewGPUs, claim_gpus
from pipeline.cells.library_environment import COMPILE_IN_PROCESS, THREAD_VARIABLES
from pipeline.cells.quiet_host import Host
from pipeline.cells.record import new_record
from pipeline.cells.rows import outcome_rows
from pipeline.cells.scheduler import slurm_job
from pipeline.cells.stage import Stage, shares_host
from pipeline.errors import Skipped
from pipeline.instruments.machine import identity
from pipeline.instruments.machine.cgroups import memory_limit_bytes
from pipeline.instruments.memory.out_of_memory import is_out_of_memory
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.subjects import naming
from pipeline.subjects.naming import Subject

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class ProcessStart:
    """How this process was started ("ordinary" or by the "worker"), when its command was issued, and that command.

    waited_s: how long the command waited for the worker's imports, if another command had set them off.
    """

    process: str
    issued_at: float
    command: str
    waited_s: float = 0.0


def run_cell(
    stage: Stage,
    cell: Any,
    settings: Any,
    granted_gpus: int | None,
    start: ProcessStart,
    files_folder: Path | None = None,
    force: bool = False,
    subjects: Sequence[Subject] = (),
) -> dict[str, Any]:
    """Measure a cell and return its record, in which running out of memory and missing requirements become rows.

    granted_gpus: how many GPUs the workflow granted, perhaps fewer than requested; None: as many as needed.
    files_folder: where a stage that keeps files beside its records puts them (`prepare_files_folder`).
    force: measure even if, by formula, this machine's memory is too small.
    Any other exception is a bug and propagates, as does ValueError for rows that violate the stage's declaration.
    """
    environment, allowed, gpus_present = dict(os.environ), identity.allowed(), identity.gpu_count()
    gpus_available = gpus_present if granted_gpus is None else min(gpus_present, granted_gpus)
    wanted_gpus = min(cell.gpus, gpus_available) if getattr(cell, "takes_fewer_gpus", False) else cell.gpus
    gpus = wanted_gpus if gpus_present else 0
    skip_reason = _why_skipped(stage, cell, settings, gpus, gpus_available, force)
    uses_gpus = gpus > 0 and skip_reason is None
    # Take the host before importing or compiling anything, which would disturb another cell, and before taking GPUs,
    # which nobody could use meanwhile. So a process that holds GPUs never waits for another cell.
    shares = skip_reason is not None or shares_host(cell, gpus_present)
    host = Host(alone=not shares, command=start.command)
    has_own_cores = shares and uses_gpus
    threads = use_threads(getattr(settings, "threads", 0), gpus * own_cores.cores_per_gpu() if has_own_cores else None)
    # Read before the claim, which hides the other GPUs from this process.
    facts = {**identity.machine_facts(), **allowed, "gpus_available": gpus_available, "threads": threads}
    measure = stage.measure_function()  # imports torch, which must come after the threads are set
    if files_folder is not None:
        measure = functools.partial(measure, files_dir=files_folder)
    if subjects:
        measure = functools.partial(measure, subjects=subjects)
    subjects_before, job = naming.facts(subjects), slurm_job()
    claim = claim_gpus(gpus if uses_gpus else 0, start.command)
    if has_own_cores:
        host.watch(own_cores.pin_to_cores_of(claim.device_ids, at_most=threads))
    _start_torch(threads, with_cuda=uses_gpus and gpus == 1)
    host.settle()
    waited_s = start.waited_s + host.waited_s + claim.waited_s
    started_at, stopwatch = time.time(), Stopwatch()
    if skip_reason is None:
        rows = _rows(measure, cell, settings, stopwatch)
    else:
        rows = outcome_rows(cell, "skipped", skip_reason)
    stage.row_types.check(asdict(cell), rows)
    # Not negative, even if the clock was set back meanwhile.
    start_up_s = max(0.0, started_at - start.issued_at - waited_s)
    subject_part: dict[str, Any] = {"subjects": freshness.subject_facts(subjects, subjects_before)} if subjects else {}
    return new_record(
        stage,
        cell,
        settings,
        rows,
        job,
        started_at,
        code=freshness.code_facts(stage.package, start.issued_at, environment, measured=skip_reason is None),
        machine={**facts, "gpus_taken": list(claim.device_ids)},
        host=host.facts(),
        command=start.command,
        process=start.process,
        seconds={"start_up": start_up_s, "waiting": waited_s, **stopwatch.seconds()},
        **subject_part,
    )


def _why_skipped(stage: Stage, cell: Any, settings: Any, gpus: int, gpus_available: int, force: bool) -> str | None:
    """Return why a cell cannot be measured on `gpus` GPUs, or on the CPU if that is 0; None if it can."""
    if gpus_available < gpus:
        return str(TooFewGPUs(gpus, gpus_available))
    return None if gpus or force else too_large(stage, cell, settings)


def too_large(stage: Stage, cell: Any, settings: Any) -> str | None:
    """Return why a cell on the CPU cannot be measured; None if it fits or its stage does not say.

    On a GPU, running out of memory is an outcome; on a CPU, the kernel kills the process after minutes.
    The machine's memory limit decides, so that the outcome is the same every day; low free memory only prints a line.
    """
    needed_bytes = stage.needed_bytes(cell, settings)
    allowed_bytes, free_bytes = memory_limit_bytes(), psutil.virtual_memory().available
    needs = f"needs at least {needed_bytes / 1e9:.1f} GB of memory"
    if needed_bytes > allowed_bytes:
        return f"{needs}, this machine has {allowed_bytes / 1e9:.1f} GB; `measure --force` runs it anyway"
    if needed_bytes > free_bytes:
        warning = f"{needs}, {free_bytes / 1e9:.1f} GB are free: it may be killed"
        print(warning, file=sys.stderr, flush=True)
    return None


def use_threads(requested: int, at_most: int | None = None) -> int:
    """Set `requested` threads (0: as many as possible) for every thread pool of this process; return the number.

    at_most: upper limit, for a process that gets its own cores once it knows its GPUs; without it, the process is
    pinned to as many cores now. Pools read these variables when their library loads, so call this before importing
    torch; Snakemake sets them to a job's threads.
    """
    cores = sorted(os.sched_getaffinity(0))
    count = min(requested or len(cores), at_most or len(cores), len(cores))
    if at_most is None:
        os.sched_setaffinity(0, cores[:count])
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(count)) | COMPILE_IN_PROCESS)
    return count


def _start_torch(threads: int, with_cuda: bool) -> None:
    """Set torch's threads, since it may have loaded before THREAD_VARIABLES were set, and create the CUDA context.

    Both belong to the process's start, not to what a cell measures. A context takes GPU memory, so if a cell uses
    several GPUs, only its ranks create one.
    """
    import torch

    # Only if it changes something: it starts a thread pool, and a process with threads cannot be forked.
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    if with_cuda and torch.cuda.is_available():
        torch.cuda.synchronize()


def _rows(measure: Callable[..., Rows], cell: Any, settings: Any, stopwatch: Stopwatch) -> Rows:
    try:
        return measure(cell, settings, stopwatch)
    except Skipped as skipped:
        return outcome_rows(cell, "skipped", str(skipped))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        # A MemoryError raised by Python itself has no message.
        return outcome_rows(cell, "oom", (str(error) or type(error).__name__).splitlines()[0])
