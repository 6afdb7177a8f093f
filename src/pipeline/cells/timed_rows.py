"""Columns that rows of every stage share: a summary of samples, and the state of the GPU that took them."""

from dataclasses import dataclass

from pipeline.cells.rows import Row, column


@dataclass(frozen=True, kw_only=True)
class TimedRow(Row):
    """Samples of one time, and their summary (pipeline.instruments.sampling.summary)."""

    n: int = column("samples taken", minimum=1)
    median_ms: float = column("median", positive=True)
    q1_ms: float = column("first quartile", minimum=0)
    q3_ms: float = column("third quartile", positive=True)
    mean_ms: float = column("mean", positive=True)
    std_ms: float | None = column("standard deviation; empty for a single sample", minimum=0)
    min_ms: float = column("least sample", minimum=0)
    max_ms: float = column("largest sample", positive=True)
    rel_error: float | None = column(
        "standard error of the median over the median; empty for a single sample", minimum=0
    )
    samples_ms: list[float] = column("all samples, in the order in which they were taken", minimum=0)


@dataclass(frozen=True, kw_only=True)
class GpuTimedRow(TimedRow):
    """Samples of one time, and what NVML says of the first GPU; empty on a CPU."""

    sm_clock_before_mhz: int | None = column("SM clock before the first sample", minimum=0)
    sm_clock_mhz: int | None = column("SM clock after the last sample", minimum=0)
    temperature_c: int | None = column("temperature of the GPU after the last sample")
    power_w: float | None = column("power drawn after the last sample", minimum=0)
    throttle_reasons: list[str] | None = column("what held the SM clock down after the last sample")
    mean_sm_clock_mhz: float | None = column("mean SM clock over the samples", minimum=0)
    power_capped: bool | None = column(
        "whether the power limit held the clock down for 1% of the samples' time or more"
    )


@dataclass(frozen=True, kw_only=True)
class GpuStepRow(GpuTimedRow):
    """Samples of a step, and beside its wall time what the GPU, of several ranks the first's, did meanwhile."""

    gpu_busy_ms: float | None = column(
        "time of a step in which a kernel or copy ran, in steps profiled later", minimum=0
    )
    gpu_idle_pct: float | None = column("share of the wall time in which none ran", minimum=0)
    launches: int | None = column("kernels and copies a step", minimum=0)
    limited_by: str | None = column(
        "host: the GPU idles 20% or more; communication: nothing else runs for 20% or more; else gpu",
        allowed=("host", "communication", "gpu"),
    )
    exposed_communication_ms: float | None = column(
        "part of gpu_busy_ms in which only collectives ran, be it to wait for another rank", minimum=0
    )
    profiled_ms: float | None = column("wall time of the profiled steps", positive=True)
    energy_j: float | None = column("energy a step, of a second of steps or more, all GPUs", positive=True)
    tokens_per_j: float | None = column("tokens over the energy", positive=True)
    pinned_core: int | None = column(
        "core that the launching threads, of several ranks the first's, were kept on, where they were", minimum=0
    )
