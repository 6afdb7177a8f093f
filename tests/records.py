"""Valid records and rows, for tests that specify only what they are about."""

from dataclasses import asdict

import pytest
import torch

from pipeline.cells.record import SCHEMA_VERSION
from pipeline.instruments.machine.gpus import visible_gpus
from pipeline.instruments.machine.identity import SOFTWARE, gpu_facts
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.registry import stages
from pipeline.stages.timing.cell import Cell, Settings

CPU = {
    "kind": "a CPU",
    "cpu": {"model": "a CPU", "logical_cores": 2},
    "memory_bytes": 8 * 2**30,
    "os": "an OS",
    "software": dict.fromkeys(SOFTWARE, "1.0"),
    "gpus": [],
    "threads": 2,
}


def timed_row(phase="forward", samples_ms=(1.99, 2.0, 2.01), mode="eager", **columns):
    """Return a row of the timing stage with values, as a record holds it."""
    return {"mode": mode, "phase": phase, "clock": "host", "status": "ok", "samples_ms": list(samples_ms), **columns}


def stage_of(cell):
    return stages()[type(cell).__module__.split(".")[-2]]


def derived(cell, settings, rows, machine=None):
    """Return the rows of a cell with the columns that are derived when its record is read."""
    row_types = stage_of(cell).row_types
    row_types.check(asdict(cell), rows)
    return row_types.complete(cell, asdict(settings), machine or CPU, rows)


def rows_read(measure, cell, settings, *arguments):
    """Measure a cell on this machine; return its rows with the columns that are derived when its record is read."""
    gpus = [gpu_facts(gpu) for gpu in visible_gpus()] if torch.cuda.is_available() else []
    machine = CPU | {"kind": gpus[0]["name"], "gpus": gpus} if gpus else CPU
    return derived(cell, settings, measure(cell, settings, Stopwatch(), *arguments), machine)


def rows_on_gloo(host, measure, cell, settings):
    """Measure a cell on ranks that `tests.ranks` forks, without GPUs; return its rows as `rows_read` does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.ways.ranks.gpu_count", lambda: 0)
        patch.setattr("pipeline.ways.ranks.run_ranks", host.run_ranks)
        return derived(cell, settings, measure(cell, settings, Stopwatch()))


def attention_row(impl="triton", samples_ms=(1.99, 2.0, 2.01), **columns):
    """Return a row of the flash stage with values, as measured on a GPU."""
    named = {"impl": impl, "phase": "forward", "status": "ok", "clock": "device", "first_call_ms": 5.0}
    others = {"measured_peak_tflops_per_s": 2.0, "exposed_samples": 0, "samples_ms": list(samples_ms)}
    return {**named, **others, **columns}


def failed_row(status="oom", reason="out of memory", phase="forward"):
    """Return a row of the timing stage without values."""
    return {"phase": phase, "clock": "host", "status": status, "reason": reason}


def record(**parts):
    """Return the record of the timing stage's default cell, with these parts replaced."""
    return {
        "schema_version": SCHEMA_VERSION,
        "stage": "timing",
        "cell": asdict(Cell()),
        "settings": asdict(Settings()),
        "rows": [timed_row()],
        "machine": CPU,
        "code": {"digest": "abc", "commit": "123"},
        "command": "python -m pipeline measure timing",
        "process": "worker",
        "started_at": "2026-01-01T00:00:00Z",
        "seconds": {"start_up": 3.0, "set_up": 1.0, "measuring": 4.0},
        **parts,
    }
