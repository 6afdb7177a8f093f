"""Capture one step of each way to train with Nsight Systems. nsys runs this module as a program:

python -m pipeline.ways.nsys_captures PACKAGE WAY AXIS=VALUE... SETTING=VALUE...
"""

import dataclasses
import importlib
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

from pipeline.cells import fields
from pipeline.instruments.profilers import nsys
from pipeline.instruments.sampling.step_timing import synchronize
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.ranges import listening
from pipeline.subjects.naming import Subject
from pipeline.ways.cell import CapturedSettings, RanksCell
from pipeline.ways.measure import measure_cell
from pipeline.ways.ranks import ranks_on
from pipeline.ways.turns import plain_step
from pipeline.ways.way import Experiment, Row


def measure_and_capture(
    package: str,
    experiment: Experiment,
    cell: RanksCell,
    settings: CapturedSettings,
    stopwatch: Stopwatch,
    subjects: Sequence[Subject] = (),
    files_dir: Path | None = None,
) -> list[Row]:
    """Measure a cell; if the settings ask for nsys, capture a step of each captured way with it too.

    package: the stage's package, with modules `cell` and `measure`. A capture is written to WAY.nsys-rep in
    `files_dir`; if there is none, the row of the way's other capture says why.
    """
    rows = measure_cell(experiment, cell, settings, stopwatch, subjects, files_dir)
    if not settings.nsys or files_dir is None:
        return rows
    with stopwatch.measuring():
        names = [way.name for way in experiment.ways if way.captured]
        obstacles = {name: _obstacle(package, name, cell, settings, files_dir) for name in names}
    return [row | {"not_by_nsys": obstacles.get(row["impl"])} if "waiting_busy_pct" in row else row for row in rows]


def command(package: str, name: str, cell: RanksCell, settings: CapturedSettings) -> list[str]:
    """Return the command that runs this module as a program."""
    return [sys.executable, "-m", __name__, package, name, *fields.words(cell), *fields.words(settings)]


def main(arguments: Sequence[str]) -> None:
    """Run the ranks of a cell as the program that nsys captures."""
    package, name, *given = arguments
    declared = importlib.import_module(f"{package}.cell")
    axes = len(dataclasses.fields(declared.Cell))  # their words come first
    cell = fields.parse_words(declared.Cell, given[:axes], "cell")
    settings = fields.parse_words(declared.Settings, given[axes:], "settings")
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        # Spawned as new programs: nsys does not follow forked ranks.
        arguments_of_each = (package, name, cell, settings, f"file://{folder}/store")
        torch.multiprocessing.spawn(_run_rank, arguments_of_each, nprocs=cell.world_size)


def _run_rank(rank: int, package: str, name: str, cell: RanksCell, settings: CapturedSettings, store: str) -> None:
    """Warm up, then run the captured step between rank 0's start and stop of the profiler."""
    backend, device_type = ranks_on()
    device = torch.device(device_type, rank) if device_type == "cuda" else torch.device(device_type)
    if device_type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=cell.world_size)
    experiment = importlib.import_module(f"{package}.measure").EXPERIMENT
    way = next(way for way in experiment.ways if way.name == name)
    step = way.build(plain_step(cell, settings, device, rank))
    for _ in range(settings.warmup_steps):
        step.run()
    with ExitStack() as stack:
        _barrier(device)
        if device_type == "cuda":
            stack.enter_context(listening(torch.cuda.nvtx.range))
            if rank == 0:
                torch.cuda.profiler.start()
                stack.callback(torch.cuda.profiler.stop)
        _barrier(device)
        step.run()
        _barrier(device)
    dist.destroy_process_group()


def _barrier(device: torch.device) -> None:
    dist.barrier()
    synchronize(device)


def _obstacle(package: str, name: str, cell: RanksCell, settings: CapturedSettings, folder: Path) -> str | None:
    """Capture a way; return the reason if that failed."""
    if ranks_on()[1] != "cuda":
        return "nsys captures need a CUDA GPU"
    try:
        nsys.capture(command(package, name, cell, settings), folder / f"{name}.nsys-rep")
    except nsys.CaptureFailed as failed:
        return str(failed)
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
