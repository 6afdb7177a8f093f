"""Records of the memory stage on a GPU, made of the predictions and a workspace on top."""

import itertools
from dataclasses import asdict

import pytest

from pipeline.formulas.activations import block_bytes, residual_stream_bytes, saved_terms
from pipeline.formulas.parameters import block_parameter_count
from pipeline.formulas.peak_memory import MODE_PHASES, predict_peaks
from pipeline.registry import stages
from pipeline.report.frame import build
from pipeline.stages.memory.cell import Cell, Settings
from pipeline.stages.memory.report import build as build_section

from ...records import derived

WORKSPACE = 64 * 2**20
SOFTWARE = {"python": "3.12.3", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "driver": "580.65"}
GPU = {"kind": "NVIDIA H200", "software": SOFTWARE}


def record(cell, rows, card="1"):
    """Make the record of a cell, as far as tables are made of it."""
    machine = GPU | {"gpus_taken": [f"GPU-{card}"]}
    read = derived(cell, Settings(), rows, machine)
    return {"cell": asdict(cell), "settings": asdict(Settings()), "rows": read, "machine": machine}


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


def gpu_cell(card="1", **varied):
    """Return the record of a cell as an H200 could leave it; card: which one."""
    cell = Cell(**varied)
    workload = cell.workload(Settings.vocab_size, Settings.batch_size, "cuda")
    moments = {step: predict_peaks(workload, cell.mode, first_step=step == 1) for step in (1, 2)}
    rows = [
        peak_row(step, phase, moments[step][phase]) for step, phase in itertools.product((1, 2), MODE_PHASES[cell.mode])
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
            "allocated_peak_bytes": highest * 101 // 100,
            "reserved_peak_bytes": highest * 103 // 100,
            "device_bytes": 141 * 10**9,
        },
    ]
    kept = 0 if cell.mode == "inference" else sum(saved_terms(workload).values())
    rows.append({"kind": "saved", "activations_bytes": kept})
    if cell.mode == "train_step":
        if not cell.checkpoint_every:
            rows += block_rows(workload)
        slower = 1.3 if cell.checkpoint_every else 1.0
        time_ms = cell.context_length * slower * (0.8 if cell.attention == "flash" else 1)
        # The quartiles are 1% away from the median.
        samples_ms = [time_ms * (1 + share) for share in (-0.02, -0.01, 0, 0.01, 0.02)]
        rows.append({"kind": "time", "samples_ms": samples_ms})
    return record(cell, [{"status": "ok", **row, "device_type": "cuda"} for row in rows], card)


def block_rows(workload):
    saved = {
        "kind": "block",
        "saved_bytes": block_bytes(workload),
        "gradients_bytes": 4 * block_parameter_count(workload.size),
        "input_gradient_bytes": residual_stream_bytes(workload),
    }
    largest = {"kind": "block_saved", "size_bytes": 84 * 10**6, "operation": "Silu.self", "dtype": "bfloat16"}
    shape = {"shape": [4, workload.seq_len, workload.size.d_ff]}
    return [saved, *({**largest, **shape, "rank": rank, "module": f"part_{rank}"} for rank in range(1, 8))]


@pytest.fixture(scope="session")
def cell_of():
    """Return the function that makes the record of a cell as an H200 could leave it, by its axes."""
    return gpu_cell


@pytest.fixture(scope="session")
def out_of_memory():
    """Return the function that makes the record of a cell that ran out of memory, by its axes."""

    def make(**varied):
        cell = Cell(**varied)
        failure = {"status": "oom", "reason": "CUDA out of memory"}
        return record(cell, [{**key, **failure} for key in cell.row_keys()])

    return make


@pytest.fixture(scope="session")
def section_of():
    """Return the function that builds the section of records."""
    return lambda *records: build_section(build(stages()["memory"], records), {})
