"""Columns that rows of every stage share: samples and their summary, the state of the GPU, what it did in a step."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.cells.rows import Reading, Row, column, derived
from pipeline.instruments.profilers.kernel_categories import CATEGORIES, IDLE
from pipeline.instruments.sampling.summary import quartiles, rel_error

# Shares of the wall time from which the host, or communication, counts as limiting a step.
HOST_LIMIT, COMMUNICATION_LIMIT = 0.2, 0.2
MOST_PROFILER_SLOWDOWN = 1.03
# A phase's error below this share of the whole step's limit is ignored: a wait of microseconds is noise.
NEGLIGIBLE_SHARE = 0.2
# The phase that is the whole step.
TRAIN_STEP = "train_step"


@dataclass(frozen=True, kw_only=True)
class TimedRow(Row):
    """Samples of one time, and their summary."""

    samples_ms: list[float] = column("all samples, in the order taken", minimum=0)
    slowdowns: list[str] | None = column("why the hardware held a GPU's clock down meanwhile; power caps do not count")
    n: int = derived("number of samples", minimum=1)
    median_ms: float = derived("median", positive=True)
    q1_ms: float = derived("first quartile", minimum=0)
    q3_ms: float = derived("third quartile", positive=True)
    mean_ms: float = derived("mean", positive=True)
    std_ms: float | None = derived("standard deviation; empty for a single sample", minimum=0)
    min_ms: float = derived("smallest sample", minimum=0)
    max_ms: float = derived("largest sample", positive=True)
    rel_error: float | None = derived(
        "standard error of the median over the median; empty for a single sample", minimum=0
    )

    @classmethod
    def derive(cls, reading: Reading) -> dict[str, Any]:
        """Return the samples' summary, the status `unstable` if their median cannot be trusted, and `timed_columns`."""
        if not reading.row.get("samples_ms"):
            return {}
        summary, why = summarise(reading.row["samples_ms"]), cls.why_unstable(reading)
        outcome = {}
        if why is not None:
            outcome = {"status": "unstable", "reason": "; ".join(filter(None, [reading.row.get("reason"), why]))}
        return {**summary, **outcome, **cls.timed_columns(reading, summary["median_ms"])}

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Return further columns derived from a row with a time, such as rates."""
        return {}

    @classmethod
    def why_unstable(cls, reading: Reading) -> str | None:
        """Return why the median cannot be trusted; None if it can."""
        row, limit = reading.row, reading.settings["unstable_rel_error"]
        return doubt_about_median(row["samples_ms"], row.get("slowdowns") or (), limit)


@dataclass(frozen=True, kw_only=True)
class GpuTimedRow(TimedRow):
    """Samples of one time, and NVML's readings of the first GPU, which are empty on a CPU."""

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
    """Samples of a step, its wall time, and what the GPU (of several ranks: the first's) did."""

    gpu_busy_ms: float | None = column(
        "time per step in which a kernel or copy ran, from steps profiled later", minimum=0
    )
    gpu_idle_pct: float | None = derived("share of the wall time in which none ran", minimum=0)
    launches: int | None = column("kernels and copies per step", minimum=0)
    limited_by: str | None = derived(
        "host: the GPU idles for 20% or more; communication: nothing else runs for 20% or more; else gpu",
        allowed=("host", "communication", "gpu"),
    )
    exposed_communication_ms: float | None = column(
        "part of gpu_busy_ms in which only collectives ran, including waits for other ranks", minimum=0
    )
    profiled_ms: float | None = column("wall time of the profiled steps", positive=True)
    energy_j: float | None = column("energy per step of all GPUs, measured over a second or more", positive=True)
    tokens_per_j: float | None = derived("tokens per step over energy_j", positive=True)
    pinned_core: int | None = column(
        "CPU core to which the launching threads (of several ranks: the first's) were pinned; empty if not pinned",
        minimum=0,
    )

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Return the columns derived from the GPU's idle time and energy."""
        energy_j = reading.row.get("energy_j")
        per_energy = {"tokens_per_j": cls.tokens_per_step(reading) / energy_j} if energy_j else {}
        return idle_columns(reading.row, median_ms) | per_energy

    @classmethod
    def tokens_per_step(cls, reading: Reading) -> int:
        """Return the tokens per step over all ranks; the batch size is an axis or a setting."""
        cell = reading.cell
        batch_size = cell.batch_size if hasattr(cell, "batch_size") else reading.settings["batch_size"]
        return batch_size * cell.context_length


def idle_columns(row: Mapping[str, Any], wall_ms: float) -> dict[str, Any]:
    """Return the share of a step's wall time in which the GPU idled, and what limits the step.

    Empty if profiling slowed the ranks down: the GPU may then have idled longer than computed, but not less, so that
    only `host` is certain.
    """
    busy_ms, exposed_ms = row.get("gpu_busy_ms"), row.get("exposed_communication_ms") or 0.0
    if busy_ms is None:
        return {}
    idle_pct = 100 * max(0.0, wall_ms - busy_ms) / wall_ms
    if idle_pct >= 100 * HOST_LIMIT:
        return {"gpu_idle_pct": idle_pct, "limited_by": "host"}
    if exposed_ms and slowed_by_profiler(row.get("profiled_ms") or 0.0, wall_ms):
        return {}
    limit = "communication" if exposed_ms >= COMMUNICATION_LIMIT * wall_ms else "gpu"
    return {"gpu_idle_pct": idle_pct, "limited_by": limit}


def slowed_by_profiler(profiled_ms: Any, timed_ms: Any) -> Any:
    """Tell whether a profiled step of several ranks took too long to say anything about the timed one.

    Its collectives then waited for ranks that the profiler slowed down. Takes numbers or Series.
    """
    return profiled_ms > MOST_PROFILER_SLOWDOWN * timed_ms


@dataclass(frozen=True, kw_only=True)
class RanksStepRow(GpuStepRow):
    """Samples of a step that ranks run together, alternating with others, or of one of its phases."""

    WHOLE_STEP: ClassVar[Mapping[str, Any]] = {"phase": TRAIN_STEP, "clock": "host"}

    turns: int = column("turns that the samples come from, equally many from each", minimum=1)
    tokens: int = derived("tokens per step over all ranks: sequences times context length", minimum=1)

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Add the tokens per step."""
        return super().timed_columns(reading, median_ms) | {"tokens": cls.tokens_per_step(reading)}

    @classmethod
    def tokens_per_step(cls, reading: Reading) -> int:
        """Return the tokens per step over all ranks."""
        cell = reading.cell
        return cell.world_size * cell.batch_size_per_rank * cell.context_length

    @classmethod
    def why_unstable(cls, reading: Reading) -> str | None:
        """Also judge how far apart the turns lie; ignore an error that is negligible in the whole step."""
        row, limit = reading.row, reading.settings["unstable_rel_error"]
        step_row = reading.sibling_row(cls.KEYS, **cls.WHOLE_STEP)
        step_ms = summarise(step_row["samples_ms"])["median_ms"] if step_row else 0.0
        return doubt_about_median(row["samples_ms"], row.get("slowdowns") or (), limit, row["turns"], step_ms)


@dataclass(frozen=True, kw_only=True)
class BudgetRow(Row):
    """Where a step's time goes on the first rank: the time each kind of work adds to those before it."""

    category: str = column(
        "kind of work by kernel name, in this order; communication: what no other work hides; idle: no kernel ran",
        allowed=(*CATEGORIES, IDLE),
    )
    work_ms: float = column("time that it adds to a profiled step", minimum=0)
    launches: int = column("kernels and copies per step", minimum=0)


def summarise(samples_ms: Sequence[float]) -> dict[str, Any]:
    """Return n, median, quartiles, mean, standard deviation, extremes in ms, and the median's relative error.

    Standard deviation and relative error of a single sample are None: unknown, not 0.
    """
    q1, median, q3 = quartiles(samples_ms)
    has_several = len(samples_ms) > 1
    return {
        "n": len(samples_ms),
        "median_ms": median,
        "q1_ms": q1,
        "q3_ms": q3,
        "mean_ms": statistics.fmean(samples_ms),
        "std_ms": statistics.stdev(samples_ms) if has_several else None,
        "min_ms": min(samples_ms),
        "max_ms": max(samples_ms),
        "rel_error": rel_error(samples_ms) if has_several else None,
    }


def doubt_about_median(
    samples_ms: Sequence[float],
    slowdowns: Sequence[str],
    unstable_rel_error: float,
    turns: int = 1,
    step_ms: float = 0.0,
) -> str | None:
    """Return why the median of these samples is too uncertain; None if it is not.

    Frames also mark rows whose repeats contradict each other.

    slowdowns: why the hardware held the clock down while the samples were taken, power caps excluded.
    unstable_rel_error: limit on the standard error of the median, divided by the median.
    turns: the number of consecutive turns with equally many samples; differences between turns count too.
    step_ms: the median of the step that this is a phase of, 0 if it is not a phase.
    """
    if slowdowns:
        return f"GPU slowed down: {', '.join(slowdowns)}"
    median_ms = statistics.median(samples_ms)
    negligible_ms = NEGLIGIBLE_SHARE * unstable_rel_error * step_ms
    if turns > 1:
        medians_ms = [statistics.median(turn) for turn in _split_into_turns(samples_ms, turns)]
        # The standard error of the mean of the turns' medians.
        error_ms = statistics.stdev(medians_ms) / turns**0.5
        if error_ms > max(unstable_rel_error * median_ms, negligible_ms):
            return f"turn medians differ by {max(medians_ms) / min(medians_ms) - 1:.0%}"
    error = rel_error(samples_ms)
    if len(samples_ms) > 1 and error > unstable_rel_error and error * median_ms > negligible_ms:
        return f"standard error of the median {error:.1%}" if error < 1 else "median unknown: samples too far apart"
    return None


def _split_into_turns(samples_ms: Sequence[float], turns: int) -> list[Sequence[float]]:
    turn_size, remainder = divmod(len(samples_ms), turns)
    if not turn_size or remainder:
        raise ValueError(f"{len(samples_ms)} samples do not divide evenly into {turns} turns")
    return [samples_ms[start : start + turn_size] for start in range(0, len(samples_ms), turn_size)]
