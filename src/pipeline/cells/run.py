"""Run one cell in this process, from its words to its record."""

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
    """How this process came to be: "ordinary" or by the "worker", when its command was issued, and that command.

    waited_s: how long the command waited while another started the worker, which counts once.
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
    """Measure a cell and return its record, in which out-of-memory and what the machine lacks are rows.

    granted_gpus: how many GPUs the workflow gave, which may be fewer than asked for; None: as many as needed.
    files_folder: where a stage that keeps files beside its records leaves them (`files_place`).
    force: measure also what this machine's memory cannot hold by the formulas.
    Any other exception is a bug and passes through, as does ValueError for rows that the stage does not declare so.
    """
    environment, allowed, gpus_present = dict(os.environ), identity.allowed(), identity.gpu_count()
    gpus_available = gpus_present if granted_gpus is None else min(gpus_present, granted_gpus)
    gpus = min(cell.gpus, gpus_available) if getattr(cell, "takes_fewer_gpus", False) else cell.gpus
    lack: Exception | None = None
    if gpus_present and gpus_available < gpus:
        lack = TooFewGPUs(gpus, gpus_available)
    if not lack and not force and not (gpus_present and cell.gpus):
        lack = too_large(stage, cell, settings)
    # Before anything is imported or compiled: that would disturb another cell. And before its GPUs, which nobody could
    # use while it waits; whoever has GPUs waits for no other cell.
    shares = bool(lack) or shares_host(cell, gpus_present)
    host = Host(alone=not shares, command=start.command)
    has_own_cores = shares and not lack and gpus_present > 0 and gpus > 0
    threads = use_threads(getattr(settings, "threads", 0), gpus * own_cores.per_gpu() if has_own_cores else None)
    # Asked before the claim, which hides the other GPUs from this process.
    facts = {**identity.machine_facts(), **allowed, "gpus_available": gpus_available, "threads": threads}
    measure = stage.measure()  # brings torch, which must come after the threads are set
    if files_folder is not None:
        measure = functools.partial(measure, files_dir=files_folder)
    if subjects:
        measure = functools.partial(measure, subjects=subjects)
    asked, job = naming.facts(subjects), slurm_job()
    claim = claim_gpus(0 if lack or not gpus_present else gpus, start.command)
    if has_own_cores:
        host.watch(own_cores.keep_to_those_of(claim.device_ids, at_most=threads))
    _start_torch(threads, with_cuda=gpus == 1)
    host.settle()
    waited_s = start.waited_s + host.waited_s + claim.waited_s
    started_at, stopwatch = time.time(), Stopwatch()
    rows = outcome_rows(cell, "skipped", str(lack)) if lack else _rows(measure, cell, settings, stopwatch)
    stage.row_types.check(asdict(cell), rows)
    # A clock that was set back meanwhile gives no negative time.
    start_up_s = max(0.0, started_at - start.issued_at - waited_s)
    own: dict[str, Any] = {"subjects": freshness.subject_facts(subjects, asked)} if subjects else {}
    return new_record(
        *(stage, cell, settings, rows, job, started_at),
        code=freshness.code_facts(stage.package, start.issued_at, environment, measured=lack is None),
        machine={**facts, "gpus_taken": list(claim.device_ids)},
        host=host.facts(),
        command=start.command,
        process=start.process,
        seconds={"start_up": start_up_s, "waiting": waited_s, **stopwatch.seconds()},
        **own,
    )


def too_large(stage: Stage, cell: Any, settings: Any) -> Skipped | None:
    """Return the reason why a cell on the CPU cannot be measured; None where it fits, or its stage does not say.

    On a GPU running out of memory is an outcome; on a CPU the kernel kills what takes too much, after minutes.
    What this machine has decides, so that the outcome is the same on another day. Of what is free now a line tells.
    """
    needed_bytes = stage.needed_bytes(cell, settings)
    allowed_bytes, free_bytes = memory_limit_bytes(), psutil.virtual_memory().available
    takes = f"takes {needed_bytes / 1e9:.1f} GB of memory or more"
    if needed_bytes > allowed_bytes:
        return Skipped(f"{takes}, this machine has {allowed_bytes / 1e9:.1f} GB; `measure --force` tries it")
    if needed_bytes > free_bytes:
        told = f"{takes}, of which {free_bytes / 1e9:.1f} GB are free: it may be killed"
        print(told, file=sys.stderr, flush=True)
    return None


def use_threads(asked: int, most: int | None = None) -> int:
    """Set `asked` threads (0: all that it may) for every thread pool of this process; return how many.

    most: so many, where the process will have cores of its own once it knows its GPUs; else it is kept to as many now.
    Pools read the variables, which Snakemake sets to a job's threads, when their library is loaded: before torch is.
    """
    cores = sorted(os.sched_getaffinity(0))
    count = min(asked or len(cores), most or len(cores), len(cores))
    if most is None:
        os.sched_setaffinity(0, cores[:count])
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(count)) | COMPILE_IN_PROCESS)
    return count


def _start_torch(threads: int, with_cuda: bool) -> None:
    """Set torch's threads, for it may have been loaded before THREAD_VARIABLES were set, and make the CUDA context.

    Both belong to the start of the process, not to what a cell measures. A context takes memory: the process of a cell
    of several GPUs, which its ranks use, has none.
    """
    import torch

    # Only where it changes something, for it starts the threads of a pool, and a process with threads cannot be forked.
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
        return outcome_rows(cell, "oom", str(error).splitlines()[0])
