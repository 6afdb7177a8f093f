"""Memory rows of a GPU, made of the predictions and a workspace on top; a small CPU's are measured."""

import itertools
from dataclasses import asdict

import pytest

from pipeline.formulas.activations import block_bytes, residual_stream_bytes, saved_terms
from pipeline.formulas.checkpointing import KINDS
from pipeline.formulas.parameters import block_parameter_count
from pipeline.formulas.peak_memory import MODE_PHASES, predict_peaks
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.registry import stages
from pipeline.report.section_rows import shown_rows
from pipeline.stages.memory.cell import Cell, Settings
from pipeline.stages.memory.measure import measure

from ...records import derived

WORKSPACE = 64 * 2**20
SOFTWARE = {"python": "3.12.3", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "driver": "580.65"}
GPU = {"kind": "NVIDIA H200", "software": SOFTWARE}
CPU = {"kind": "AMD EPYC", "software": SOFTWARE | {"cuda": "none", "driver": "none"}}


def record(cell, rows, machine=GPU, settings=None):
    """Make the record of a cell, as far as tables are made of it."""
    settings = settings or Settings()
    read = derived(cell, settings, rows, machine)
    return {"cell": asdict(cell), "settings": asdict(settings), "rows": read, "machine": machine}


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
    """Return the record of a cell as an H200 could leave it."""
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
    return record(cell, [{"status": "ok", **row, "device_type": "cuda"} for row in rows])


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


def outcome(status, reason, machine=GPU, **varied):
    cell = Cell(**varied)
    return record(cell, [{**key, "status": status, "reason": reason} for key in cell.row_keys()], machine)


def h200():
    records = [
        gpu_cell(precision=precision, context_length=length, mode=mode)
        for precision, length, mode in itertools.product(("bf16", "fp32"), (128, 256, 512, 1024), MODE_PHASES)
        if (precision, length, mode) != ("fp32", 1024, "train_step")
    ]
    records.append(outcome("oom", "CUDA out of memory", context_length=1024))
    for attention, every in (("eager", 1), ("eager", 4), ("flash", 0), ("flash", 1)):
        records.append(gpu_cell(precision="bf16", context_length=1024, attention=attention, checkpoint_every=every))
    records.append(gpu_cell(context_length=1024, attention="flash"))
    deep = {"precision": "bf16", "size": "small", "context_length": 4096, "attention": "flash"}
    for layers in (4, 16, 64):
        records.append(gpu_cell(**deep, num_layers=layers))
        records += [gpu_cell(**deep, num_layers=layers, checkpoint_every=1, checkpointing=kind) for kind in KINDS]
    records.append(outcome("skipped", "flash attention needs a CUDA GPU", attention="flash", checkpoint_every=4))
    return records


def measured_cell(folder, **varied):
    cell, settings = Cell(**varied), Settings(vocab_size=100, budget_s=0, warmup_steps=0)
    files_dir = folder / "_".join(map(str, varied.values()))
    files_dir.mkdir()
    return record(cell, measure(cell, settings, Stopwatch(), files_dir), CPU, settings)


def smoke(folder):
    tiny = {"size": "tiny", "context_length": 16}
    records = [
        measured_cell(folder, **tiny, mode=mode, precision=precision)
        for mode, precision in itertools.product(("inference", "train_step"), ("fp32", "bf16"))
    ]
    records.append(measured_cell(folder, **tiny, mode="train_step", checkpoint_every=1))
    records.append(outcome("skipped", "flash attention needs a CUDA GPU", CPU, **tiny, attention="flash"))
    return records


def table(records):
    """Make the rows of records as the section gets them."""
    return shown_rows(stages()["memory"], records)


@pytest.fixture(scope="session")
def rows_of(tmp_path_factory):
    """Give the rows of h200, smoke (measured here) and skipped, which has no figure."""
    return {
        "h200": table(h200()),
        "smoke": table(smoke(tmp_path_factory.mktemp("files"))),
        "skipped": table([outcome("skipped", "flash attention needs a CUDA GPU", CPU, attention="flash")]),
    }
