"""Measure a cell of collectives: run its ranks as processes and merge their rows."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from pipeline.cells.scheduler import slurm_job
from pipeline.errors import Skipped
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.summary import quartiles
from pipeline.parallel.processes.starting import run_ranks
from pipeline.stages.collectives.cell import Cell, Settings
from pipeline.stages.collectives.ranks import RankReport, measure_rank

Row = dict[str, Any]


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch) -> list[Row]:
    """Return a row per size, implementation and timing, and for the set-up; raises Skipped if the backend cannot run.

    A sample is the time of the slowest rank: a collective ends when its last rank is done.
    """
    settings.sizes_bytes()  # refuses bad sizes before any process starts
    _require(cell)
    with stopwatch.measuring():
        reports = _run(cell)(
            measure_rank,
            cell.world_size,
            backend=cell.backend,
            device_type="cuda" if cell.backend == "nccl" else "cpu",
            timeout_s=settings.timeout_s,
            args=(cell, settings),
        )
    return merged(reports, cell)


def _run(cell: Cell) -> Callable[..., list[RankReport]]:
    """Return the function that runs the cell's ranks; one-node cells do not depend on the multi-node code."""
    if cell.nodes == 1:
        return run_ranks
    from pipeline.parallel.processes.over_nodes import run_ranks_over_nodes

    return partial(run_ranks_over_nodes, nodes=cell.nodes)


def _require(cell: Cell) -> None:
    _require_nodes(cell.nodes)
    # device_count() asks NVML and does not start CUDA: the ranks need the GPUs, not this process.
    if cell.backend == "nccl" and torch.cuda.device_count() == 0:
        raise Skipped(f"NCCL needs a GPU for each of {cell.world_size} ranks, none present")
    available = {"gloo": dist.is_gloo_available, "nccl": dist.is_nccl_available}
    if not available[cell.backend]():
        raise Skipped(f"this build of torch has no {cell.backend}")


def _require_nodes(nodes: int) -> None:
    if nodes == 1:
        return
    job = slurm_job()
    if job is None:
        raise Skipped(f"{nodes} nodes need a job of Slurm, this is none")
    if job.num_nodes < nodes:
        raise Skipped(f"needs {nodes} nodes, Slurm job {job.number} has {job.num_nodes}")


def merged(reports: list[RankReport], cell: Cell) -> list[Row]:
    """Merge the ranks' rows: samples of the slowest rank, and the medians of all."""
    by_rank = zip(*(report.rows for report in reports), strict=True)
    rows = [_merged_row(rank_rows, reports[0]) for rank_rows in by_rank]
    reason = reports[0].no_direct_nccl
    skipped_keys = [key for key in cell.row_keys() if key["impl"] == "nccl"] if reason else []
    return rows + [{**key, "status": "skipped", "reason": reason} for key in skipped_keys]


def _merged_row(rank_rows: tuple[Row, ...], report: RankReport) -> Row:
    key: Row = {name: value for name, value in rank_rows[0].items() if name != "samples_ms"}
    if "samples_ms" not in rank_rows[0]:
        return key
    size: Any = key.get("size_bytes")  # None for the set-up
    samples_ms = [max(times) for times in zip(*(row["samples_ms"] for row in rank_rows), strict=True)]
    return {
        **key,
        "status": "ok",
        "slowdowns": report.slowdowns.get(size, []),
        "cores": len(os.sched_getaffinity(0)),
        **_gpu_columns(report.states.get(size, [])),
        "rank_medians_ms": [quartiles(row["samples_ms"])[1] for row in rank_rows],
        "samples_ms": samples_ms,
    }


def _gpu_columns(states: list[Row]) -> Row:
    """Return the slowest clock and the highest temperature of the GPUs after the last sample; None without NVML."""
    clocks = [state["sm_clock_mhz"] for state in states if state["sm_clock_mhz"] is not None]
    temperatures = [state["temperature_c"] for state in states if state["temperature_c"] is not None]
    return {"sm_clock_mhz": min(clocks, default=None), "temperature_c": max(temperatures, default=None)}
