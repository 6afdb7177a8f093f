"""Tables of a stage as its section reads them."""

import functools
from dataclasses import asdict

import pytest

from pipeline.cells.disk import WholeFile
from pipeline.cells.record import SCHEMA_VERSION, read_record, write_record
from pipeline.instruments.machine import peaks
from pipeline.registry import stages
from pipeline.report.frame import build

from ..ranks import context, host, pytest_collection_finish, pytest_pyfunc_call, pytest_unconfigure  # noqa: F401
from ..records import CPU, as_recorded

SOFTWARE = {"python": "3.12.3", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "driver": "580.65"}


def machine_named(kind):
    """Return the facts of a machine with a GPU of this kind, or with a CPU where no GPU is called so."""
    gpus = [{"name": kind}] if kind.startswith("NVIDIA") else []
    return CPU | {"kind": kind, "software": SOFTWARE, "gpus": gpus}


_peak_tflops = functools.cache(peaks.measured_peak_tflops)


@pytest.fixture(autouse=True)
def peaks_measured_once(monkeypatch):
    """Measure a CPU's peaks once in a process: what cells do with them is the same."""
    monkeypatch.setattr(peaks, "measured_peak_tflops", _peak_tflops)


@pytest.fixture(scope="session")
def as_table(tmp_path_factory):
    """Turn a cell's rows into what a section reads: through a record."""

    def make(cell, settings, rows, machine):
        record = {
            "schema_version": SCHEMA_VERSION,
            "stage": type(cell).__module__.split(".")[-2],
            "cell": asdict(cell),
            "settings": asdict(settings),
            "rows": as_recorded(cell, rows),
            "machine": machine_named(machine),
            "code": {"digest": "abc", "commit": "123"},
            "command": "python -m pipeline measure",
            "process": "ordinary",
            "started_at": "2026-01-01T00:00:00Z",
            "seconds": {"start_up": 1.0, "set_up": 1.0, "measuring": 1.0},
        }
        path = tmp_path_factory.mktemp("record") / "cell.json"
        write_record(WholeFile(path), record)
        return build(stages()[record["stage"]], [read_record(path, stages())])

    return make
