"""Run one cell in this process, from its words to its record."""

import importlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import pipeline
from pipeline.cells import freshness
from pipeline.cells.devices import TooFewGPUs, claim_gpus
from pipeline.cells.record import SCHEMA_VERSION
from pipeline.errors import Skipped
from pipeline.instruments import machine
from pipeline.instruments.stopwatch import Stopwatch

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

Rows = list[dict[str, Any]]


def run_cell(stage: str, cell: Any, settings: Any, granted_gpus: int | None, command: str) -> dict[str, Any]:
    """Measure a cell and return its record.

    granted_gpus: how many GPUs the workflow gave, which may be fewer than asked for; None: as many as needed.
    Out-of-memory and what the machine lacks become rows; any other exception is a bug and passes through.
    """
    started_at = time.time()
    threads = pin_threads(getattr(settings, "threads", 0))
    try:
        claim = _claim(cell.gpus, granted_gpus)
    except TooFewGPUs as too_few:
        rows, seconds = _outcome_rows(cell, "skipped", str(too_few)), {"set_up": 0.0, "measuring": 0.0}
    else:
        with claim:
            rows, seconds = _measured(stage, cell, settings)
    return {
        "schema_version": SCHEMA_VERSION,
        "stage": stage,
        "cell": _as_dict(cell),
        "settings": _as_dict(settings),
        "rows": rows,
        "machine": {**machine.machine_facts(), "threads": threads},
        "code": {
            "digest": freshness.code_digest(f"pipeline.stages.{stage}.measure"),
            "commit": machine.git_commit(Path(pipeline.__file__).parent),
        },
        "command": command,
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started_at)),
        "seconds": {"start_up": started_at - psutil.Process().create_time(), **seconds},
    }


def pin_threads(asked: int) -> int:
    """Keep this process to `asked` of the cores it may use (0: all), for every thread pool; return how many.

    Snakemake exports OMP_NUM_THREADS and its like as the job's threads, 1 under --cores 1; thread pools read
    them when their library is loaded, so this comes before torch is imported.
    """
    cores = sorted(os.sched_getaffinity(0))
    chosen = cores[: asked or len(cores)]
    os.sched_setaffinity(0, chosen)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(len(chosen))))
    return len(chosen)


def _claim(needed: int, granted: int | None) -> Any:
    present = machine.gpu_count()
    if present == 0:
        return claim_gpus(0)
    if granted is not None and granted < needed:
        raise TooFewGPUs(needed, granted)
    return claim_gpus(needed)


def _measured(stage: str, cell: Any, settings: Any) -> tuple[Rows, dict[str, float]]:
    stopwatch = Stopwatch()
    measure = _measure_function(stage)
    try:
        rows = measure(cell, settings, stopwatch)
    except Skipped as skipped:
        rows = _outcome_rows(cell, "skipped", str(skipped))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        rows = _outcome_rows(cell, "oom", str(error).splitlines()[0])
    return rows, stopwatch.seconds()


def _measure_function(stage: str) -> Callable[..., Rows]:
    # Imported here, not at the top: it brings torch, which must not come before the GPUs are claimed.
    return importlib.import_module(f"pipeline.stages.{stage}.measure").measure


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception says that memory ran out, on a GPU or on the host."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return "DefaultCPUAllocator: can't allocate memory" in str(error)


def _outcome_rows(cell: Any, status: str, reason: str) -> Rows:
    return [{**key, "status": status, "reason": reason} for key in cell.row_keys()]


def _as_dict(instance: Any) -> dict[str, Any]:
    return {name: getattr(instance, name) for name in instance.__dataclass_fields__}
