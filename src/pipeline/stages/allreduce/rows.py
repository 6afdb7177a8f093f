"""Rows of the allreduce stage: times of set-up, first call, back-to-back calls and single calls, by size."""

import statistics
from dataclasses import dataclass
from typing import Any

from pipeline.cells.rows import Reading, RowTypes, column, derived
from pipeline.cells.timed_rows import TimedRow
from pipeline.formulas.collectives import all_reduce_bus_factor
from pipeline.stages.allreduce.cell import IMPLS, PLACEMENTS, TIMINGS


@dataclass(frozen=True, kw_only=True)
class RankTimes(TimedRow):
    """Columns of all times here; each sample is the slowest rank's."""

    timing: str = column(
        "set_up: before the first call; first_call; burst: back-to-back calls; single: one call after a barrier",
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
        """Return how the ranks' medians lie, and whether they have a core each."""
        cell, medians_ms = reading.cell, reading.row["rank_medians_ms"]
        return {
            "rank_min_ms": min(medians_ms),
            "rank_mean_ms": statistics.fmean(medians_ms),
            "rank_max_ms": max(medians_ms),
            "oversubscribed": cell.backend == "gloo" and cell.ranks_per_node > reading.row["cores"],
        }


@dataclass(frozen=True, kw_only=True)
class SetUpTime(RankTimes):
    """Time to make the process group (impl torch) or NCCL's communicator (impl nccl)."""

    KEYS = ("timing", "impl", "clock")


@dataclass(frozen=True, kw_only=True)
class CallTime(RankTimes):
    """Time of one all-reduce of one size."""

    KEYS = ("timing", "impl", "placement", "clock", "size_bytes")

    placement: str = column("whether the sum is written over the input", allowed=PLACEMENTS)
    size_bytes: int = column("size of each rank's tensor", minimum=1)


@dataclass(frozen=True, kw_only=True)
class RepeatedCallTime(CallTime):
    """Time of one all-reduce of one size after warm-up, with its bandwidths from the median."""

    calls: int = column("calls per sample; its time is divided by them", minimum=1)
    parts: int | None = column("burst: parts of the buffer that its calls cycle through, each of this size", minimum=1)
    algbw_gb_per_s: float = derived("algorithm bandwidth: size over time, in 10^9 bytes per second", positive=True)
    busbw_gb_per_s: float = derived(
        "bus bandwidth: algorithm bandwidth times the bytes that each rank of a ring sends per byte", positive=True
    )

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Add algorithm and bus bandwidth, as nccl-tests defines them."""
        algbw_gb_per_s = reading.row["size_bytes"] / 1e6 / median_ms
        busbw_gb_per_s = algbw_gb_per_s * all_reduce_bus_factor(reading.cell.world_size)
        rates = {"algbw_gb_per_s": algbw_gb_per_s, "busbw_gb_per_s": busbw_gb_per_s}
        return super().timed_columns(reading, median_ms) | rates


ROW_TYPES = RowTypes(
    {"set_up": SetUpTime, "first_call": CallTime, "burst": RepeatedCallTime, "single": RepeatedCallTime},
    kind_column="timing",
)
