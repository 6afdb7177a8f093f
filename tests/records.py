"""Sound records, and rows of the timing stage, for tests that say only what they are about."""

from dataclasses import asdict

from pipeline.cells.record import SCHEMA_VERSION
from pipeline.instruments.machine.identity import SOFTWARE
from pipeline.instruments.sampling.summary import summarise
from pipeline.stages.timing.cell import Cell, Settings

CPU = {"kind": "a CPU", "cpu": {"model": "a CPU", "logical_cores": 2}, "software": dict.fromkeys(SOFTWARE, "1.0")}


def timed_row(phase="forward", samples_ms=(1.0, 2.0, 3.0), **columns):
    """Return a row of the timing stage that has figures."""
    samples_ms = list(samples_ms)
    named = {"phase": phase, "clock": "host", "status": "ok"}
    return {**named, **summarise(samples_ms), "samples_ms": samples_ms, **columns}


def attention_row(impl="triton", samples_ms=(1.0, 2.0, 3.0), **columns):
    """Return a row of the flash stage that has figures, as a GPU gives it."""
    samples_ms = list(samples_ms)
    named = {"impl": impl, "phase": "forward", "status": "ok", "clock": "device", "first_call_ms": 5.0}
    rates = {"tflops_per_s": 1.0, "peak_share_pct": 50.0, "peak_tflops_per_s": 2.0, "peak_source": "measured"}
    others = {"peak_of": "bf16", "exposed_samples": 0, "samples_ms": samples_ms}
    return {**named, **summarise(samples_ms), **rates, **others, **columns}


def failed_row(status="oom", reason="out of memory", phase="forward"):
    """Return a row of the timing stage that has none."""
    return {"phase": phase, "clock": "host", "status": status, "reason": reason}


def record(**parts):
    """Return the record of the timing stage's default cell, with these parts in place of its own."""
    return {
        "schema_version": SCHEMA_VERSION,
        "stage": "timing",
        "cell": asdict(Cell()),
        "settings": asdict(Settings()),
        "rows": [timed_row()],
        "machine": CPU,
        "code": {"digest": "abc", "commit": None},
        "command": "python -m pipeline measure timing",
        "process": "worker",
        "started_at": "2026-01-01T00:00:00Z",
        "seconds": {"start_up": 3.0, "set_up": 1.0, "measuring": 4.0},
        **parts,
    }
