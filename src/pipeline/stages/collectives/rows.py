"""Rows of the collectives stage: times of set-up, first call, back-to-back calls, single calls and graphs, by size."""

import statistics
from dataclasses import dataclass
from typing import Any

from pipeline.cells.rows import Reading, RowTypes, column, derived
from pipeline.cells.timed_rows import TimedRow
from pipeline.formulas.collectives import nccl_tests_bus_factor
from pipeline.stages.collectives.cell import IMPLS, PLACEMENTS, TIMINGS


@dataclass(frozen=True, kw_only=True)
class RankTimes(TimedRow):
    """Columns of all times here; each sample is the slowest rank's."""

    timing: str = column(
        "set_up: before the first call; first_call; burst: back-to-back calls; single: one call after a barrier; "
        "graph: calls of one CUDA graph",
        allowed=TIMINGS,
    )
    impl: str = column("torch: torch.distributed; nccl: NCCL called directly", allowed=IMPLS)
    clock: str = column("host: a synchronize on both sides; cuda_events: by the GPU", allowed=("host", "cuda_events"))
    rank_min_ms: float = derived("median of the fastest rank", positive=True)
    rank_mean_ms: float = derived("mean of the ranks' medians", positive=True)
    rank_max_ms: float = derived("median of the slowest rank", positive=True)
    rank_medians_ms: list[float] = column("median of each rank", positive=True)
    cores: int = column("CPU cores that the ranks of a node share", minimum=1)
    oversubscribed: bool = derived("whether gloo has more ranks on a node than cores")
    sm_clock_mhz: int | None = column("slowest SM clock of the GPUs after the last sample", minimum=0)
    temperature_c: int | None = column("temperature of the hottest GPU after the last sample")

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Return the spread of the ranks' medians, and whether gloo's ranks outnumber the cores."""
        cell, medians_ms = reading.cell, reading.row["rank_medians_ms"]
        return {
            "rank_min_ms": min(medians_ms),
            "rank_mean_ms": statistics.fmean(medians_ms),
            "rank_max_ms": max(medians_ms),
            "oversubscribed": cell.backend == "gloo" and cell.ranks_per_node > reading.row["cores"],
        }


@dataclass(frozen=True, kw_only=True)
class SetUpTime(RankTimes):
    """Time to create the process group (impl torch) or NCCL's communicator (impl nccl)."""

    KEYS = ("timing", "impl", "clock")


@dataclass(frozen=True, kw_only=True)
class CallTime(RankTimes):
    """Time of one call of one size."""

    KEYS = ("timing", "impl", "placement", "clock", "size_bytes")

    placement: str = column("whether the result is written over the input", allowed=PLACEMENTS)
    size_bytes: int = column(
        "requested size, as nccl-tests counts it: the whole buffer for all-gather, reduce-scatter and all-to-all",
        minimum=1,
    )


@dataclass(frozen=True, kw_only=True)
class RepeatedCallTime(CallTime):
    """Time of one call of one size after warm-up, with its bandwidths from the median."""

    calls: int = column("calls per sample; its time is divided by them", minimum=1)
    parts: int | None = column(
        "burst, graph: parts of the buffers that calls cycle through, each of this size", minimum=1
    )
    buffer_bytes: int = derived(
        "the size, rounded up so that each rank's share is a whole number of elements", minimum=1
    )
    algbw_gb_per_s: float = derived("algorithm bandwidth: size over time, in 10^9 bytes per second", positive=True)
    busbw_gb_per_s: float = derived(
        "bus bandwidth: algorithm bandwidth times nccl-tests' factor, comparable with a link's rate", positive=True
    )

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Add algorithm and bus bandwidth, as nccl-tests defines them."""
        cell = reading.cell
        buffer_bytes = cell.buffer_bytes(reading.row["size_bytes"])
        algbw_gb_per_s = buffer_bytes / 1e6 / median_ms
        busbw_gb_per_s = algbw_gb_per_s * nccl_tests_bus_factor(cell.collective, cell.world_size)
        rates = {"buffer_bytes": buffer_bytes, "algbw_gb_per_s": algbw_gb_per_s, "busbw_gb_per_s": busbw_gb_per_s}
        return super().timed_columns(reading, median_ms) | rates


ROW_TYPES = RowTypes(
    {
        "set_up": SetUpTime,
        "first_call": CallTime,
        **dict.fromkeys(("burst", "single", "graph"), RepeatedCallTime),
    },
    kind_column="timing",
)
