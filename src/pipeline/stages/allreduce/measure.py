"""Measure an allreduce cell: run its ranks as processes and merge their rows."""

import os
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from pipeline.cells.scheduler import slurm_job
from pipeline.errors import Skipped
from pipeline.formulas.collectives import all_reduce_bus_factor
from pipeline.instruments.sampling.stability import status_columns
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.summary import quartiles, summarise
from pipeline.parallel.processes.starting import run_ranks
from pipeline.stages.allreduce.cell import Cell, Settings
from pipeline.stages.allreduce.ranks import RankReport, measure_rank

Row = dict[str, Any]


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch) -> list[Row]:
    """Return a row per size, implementation and timing, and for the set-up; raises Skipped if the backend cannot run.

    A sample is the time of the slowest rank: an all-reduce ends when all ranks have ended it.
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
            args=(settings,),
        )
    return merged(reports, cell, settings)


def _run(cell: Cell) -> Callable[..., list[RankReport]]:
    """Return what runs the cell's ranks: cells of one node do not depend on the code for several."""
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


def merged(reports: list[RankReport], cell: Cell, settings: Settings) -> list[Row]:
    """Merge the ranks' rows: samples of the slowest rank, and the medians of all."""
    by_rank = zip(*(report.rows for report in reports), strict=True)
    rows = [_merged_row(rank_rows, reports[0], cell, settings) for rank_rows in by_rank]
    reason = reports[0].no_direct_nccl
    skipped_keys = [key for key in cell.row_keys() if key["impl"] == "nccl"] if reason else []
    return rows + [{**key, "status": "skipped", "reason": reason} for key in skipped_keys]


def _merged_row(rank_rows: tuple[Row, ...], report: RankReport, cell: Cell, settings: Settings) -> Row:
    key: Row = {name: value for name, value in rank_rows[0].items() if name != "samples_ms"}
    size: Any = key.get("size_bytes")  # None for the set-up
    samples_ms = [max(times) for times in zip(*(row["samples_ms"] for row in rank_rows), strict=True)]
    rank_medians_ms = [quartiles(row["samples_ms"])[1] for row in rank_rows]
    return {
        **key,
        **status_columns(samples_ms, report.slowdowns.get(size, []), settings.unstable_rel_error),
        **summarise(samples_ms),
        "rank_min_ms": min(rank_medians_ms),
        "rank_mean_ms": statistics.fmean(rank_medians_ms),
        "rank_max_ms": max(rank_medians_ms),
        **_rates(key, samples_ms, cell),
        **_placement_of_ranks(cell),
        **_gpu_columns(report.states.get(size, [])),
        "rank_medians_ms": rank_medians_ms,
        "samples_ms": samples_ms,
    }


def _rates(key: Row, samples_ms: list[float], cell: Cell) -> Row:
    """Return algorithm and bus bandwidth from the median, in 10^9 bytes per second as in nccl-tests."""
    if key["timing"] not in ("burst", "single"):
        return {}
    algbw_gb_per_s = key["size_bytes"] / 1e6 / quartiles(samples_ms)[1]
    return {
        "algbw_gb_per_s": algbw_gb_per_s,
        "busbw_gb_per_s": algbw_gb_per_s * all_reduce_bus_factor(cell.world_size),
    }


def _placement_of_ranks(cell: Cell) -> Row:
    cores = len(os.sched_getaffinity(0))
    return {"cores": cores, "oversubscribed": cell.backend == "gloo" and cell.ranks_per_node > cores}


def _gpu_columns(states: list[Row]) -> Row:
    """Return the slowest clock and the highest temperature of the GPUs after the last sample; None without NVML."""
    clocks = [state["sm_clock_mhz"] for state in states if state["sm_clock_mhz"] is not None]
    temperatures = [state["temperature_c"] for state in states if state["temperature_c"] is not None]
    return {"sm_clock_mhz": min(clocks, default=None), "temperature_c": max(temperatures, default=None)}
