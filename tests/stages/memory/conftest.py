"""Memory tables of a GPU, made of the predictions and a workspace on top; a small CPU's are measured."""

import io
import itertools

import pandas as pd
import pytest

from pipeline.cells.tabulate import _flat
from pipeline.formulas.activations import Workload, residual_stream_bytes, saved_terms
from pipeline.formulas.peak_memory import MODE_PHASES, predict_peaks
from pipeline.formulas.sizes import SIZES
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.report.table_rows import read_rows
from pipeline.stages.memory.cell import Cell, Settings
from pipeline.stages.memory.measure import measure

WORKSPACE = 64 * 2**20
SETTINGS = {"batch_size": 4, "vocab_size": 10_000}
GPU = {"machine": "NVIDIA H200", "torch": "2.11.0", "device_type": "cuda"}
CPU = {"machine": "AMD EPYC", "torch": "2.13.0"}


def axes(precision="fp32", context_length=256, mode="train_step", attention="eager", checkpoint_every=0, size="2.7B"):
    return {
        "precision": precision,
        "size": size,
        "context_length": context_length,
        "mode": mode,
        "attention": attention,
        "checkpoint_every": checkpoint_every,
    }


def peak_row(step, phase, moment):
    made_of = {f"{name}_bytes": count for name, count in moment.bytes_by_category.items()}
    return {
        "kind": "peak",
        "step": step,
        "phase": phase,
        "begin_event": 100 * step,
        "end_event": 100 * step + 90,
        "peak_event": 100 * step + 50,
        "peak_bytes": moment.total_bytes + WORKSPACE,
        **made_of,
        "other_bytes": made_of["other_bytes"] + WORKSPACE,
    }


def gpu_cell(**varied):
    """Return the rows of a cell as an H200 could leave them."""
    cell = axes(**varied)
    names = ("precision", "attention", "checkpoint_every")
    workload = Workload(SIZES[cell["size"]], 10_000, 4, cell["context_length"], **{name: cell[name] for name in names})
    moments = {step: predict_peaks(workload, cell["mode"], first_step=step == 1) for step in (1, 2)}
    rows = [
        peak_row(step, phase, moments[step][phase])
        for step, phase in itertools.product((1, 2), MODE_PHASES[cell["mode"]])
    ]
    highest = max(row["peak_bytes"] for row in rows)
    rows += [
        {"kind": "timeline", "category": "parameters", "events": [0, 150, 290], "active_bytes": [0, 10**10, 10**10]},
        {"kind": "timeline", "category": "activations", "events": [0, 150, 290], "active_bytes": [0, 2 * 10**10, 0]},
        {
            "kind": "largest",
            "rank": 1,
            "size_bytes": 104_857_600,
            "count": 96,
            "category": "parameters",
            "location": "model/transformer.py:9 __init__",
            "code": "super().__init__()",
        },
        {
            "kind": "residual",
            "size_bytes": residual_stream_bytes(workload),
            "smallest_bytes": residual_stream_bytes(workload),
            "count": 64,
        },
        {
            "kind": "allocator",
            "requested_peak_bytes": highest,
            "allocated_peak_bytes": highest * 1.01,
            "reserved_peak_bytes": highest * 1.03,
            "device_bytes": 141 * 10**9,
        },
    ]
    kept = 0 if cell["mode"] == "inference" else sum(saved_terms(workload).values())
    rows.append({"kind": "saved", "activations_bytes": kept})
    if cell["mode"] == "train_step":
        slower = 1.3 if cell["checkpoint_every"] else 1.0
        time_ms = cell["context_length"] * slower * (0.8 if cell["attention"] == "flash" else 1)
        rows.append({"kind": "time", "median_ms": time_ms, "q1_ms": time_ms * 0.99, "q3_ms": time_ms * 1.01, "n": 10})
    return [{**cell, **SETTINGS, "status": "ok", **row, **GPU} for row in rows]


def outcome(status, reason, machine=GPU, **varied):
    return [{**axes(**varied), **SETTINGS, "kind": "peak", "status": status, "reason": reason, **machine}]


def h200():
    cells = [
        gpu_cell(precision=precision, context_length=length, mode=mode)
        for precision, length, mode in itertools.product(("bf16", "fp32"), (128, 256, 512, 1024), MODE_PHASES)
        if (precision, length, mode) != ("fp32", 1024, "train_step")
    ]
    cells.append(outcome("oom", "CUDA out of memory", context_length=1024))
    for attention, every in (("eager", 1), ("eager", 4), ("flash", 0), ("flash", 1)):
        cells.append(gpu_cell(precision="bf16", context_length=1024, attention=attention, checkpoint_every=every))
    cells.append(gpu_cell(context_length=1024, attention="flash"))
    cells.append(outcome("skipped", "flash attention needs a CUDA GPU", attention="flash", checkpoint_every=4))
    return cells


def measured_cell(folder, **varied):
    cell, settings = Cell(**varied), Settings(vocab_size=100, budget_s=0, warmup_steps=0)
    files_dir = folder / "_".join(map(str, varied.values()))
    files_dir.mkdir()
    rows = measure(cell, settings, Stopwatch(), files_dir)
    return [{**axes(**varied), "batch_size": settings.batch_size, "vocab_size": 100, **row, **CPU} for row in rows]


def smoke(folder):
    tiny = {"size": "tiny", "context_length": 16}
    cells = [
        measured_cell(folder, **tiny, mode=mode, precision=precision)
        for mode, precision in itertools.product(("inference", "train_step"), ("fp32", "bf16"))
    ]
    cells.append(measured_cell(folder, **tiny, mode="train_step", checkpoint_every=1))
    cells.append(outcome("skipped", "flash attention needs a CUDA GPU", CPU, **tiny, attention="flash"))
    return cells


def as_read_from_tables(cells):
    """Write the rows of cells as a table and read it back, as the section gets them."""
    text = pd.DataFrame([_flat(row) for row in itertools.chain.from_iterable(cells)]).to_csv(index=False)
    return read_rows(io.StringIO(text))


@pytest.fixture(scope="session")
def rows_of(tmp_path_factory):
    """Give the rows of h200, smoke (measured here) and skipped, which has no figure."""
    return {
        "h200": as_read_from_tables(h200()),
        "smoke": as_read_from_tables(smoke(tmp_path_factory.mktemp("files"))),
        "skipped": as_read_from_tables(
            [outcome("skipped", "flash attention needs a CUDA GPU", CPU, attention="flash")]
        ),
    }


@pytest.fixture(scope="session")
def make_gpu_cell():
    return gpu_cell


@pytest.fixture(scope="session")
def make_table():
    return as_read_from_tables
