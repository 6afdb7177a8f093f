"""Records of the levers stage, for tests of whole pages."""

import json
from dataclasses import asdict

from pipeline.stages.levers.cell import Cell, Settings

from ..records import CPU, record

GPU = CPU | {"kind": "NVIDIA H200", "gpus_taken": ["GPU-12345678-9"]}
GPU |= {"gpus": [{"name": "NVIDIA H200", "memory_bytes": 150 * 10**9}]}


def step(levers, median_ms, **columns):
    samples_ms = [median_ms * (1 + 0.0002 * place) for place in range(-6, 7)]
    shared = {"first_step_ms": 9.0, "peak_bytes": 10**9, "first_loss": 9.0, "loss": 8.0}
    return {"levers": levers, "status": "ok", "samples_ms": samples_ms, **shared, **columns}


ROWS = (step("eager", 100.0), step("sdpa", 80.0), step("sdpa+compile", 50.0), step("eager_again", 101.0))


def levers_record(*rows, size="medium", repeat=1, machine=GPU, **parts):
    cell, settings = asdict(Cell(size=size, repeat=repeat)), asdict(Settings())
    return record(stage="levers", cell=cell, settings=settings, rows=list(rows), machine=machine, **parts)


def written(folder, *records):
    """Write records into a folder; return their paths, as `PageRequest` takes them."""
    paths = [folder / f"{number}.json" for number in range(len(records))]
    for path, each in zip(paths, records, strict=True):
        path.write_text(json.dumps(each))
    return [str(path) for path in paths]
