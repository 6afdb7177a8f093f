"""Columns that rows of every stage share: samples and their summary, the state of the GPU, what it did in a step."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.cells.rows import Reading, Row, column, derived
from pipeline.instruments.profilers.kernel_categories import CATEGORIES, IDLE
from pipeline.instruments.sampling.summary import quartiles, rel_error

# Shares of the wall time from which on the host, or communication, limits a step.
HOST_LIMIT, COMMUNICATION_LIMIT = 0.2, 0.2
# A profiled step of ranks that takes so many times as long as a timed one tells nothing of it: its collectives wait for
# ranks that the profiler holds up.
MOST_HELD_UP = 1.03
# An error of a phase below this share of the step's own limit is no reason for doubt: a wait of microseconds is noise.
NEGLIGIBLE_SHARE = 0.2


@dataclass(frozen=True, kw_only=True)
class TimedRow(Row):
    """Samples of one time, and their summary."""

    samples_ms: list[float] = column("all samples, in the order in which they were taken", minimum=0)
    slowdowns: list[str] | None = column("why the hardware held a GPU's clock down meanwhile; a power cap is no reason")
    n: int = derived("samples taken", minimum=1)
    median_ms: float = derived("median", positive=True)
    q1_ms: float = derived("first quartile", minimum=0)
    q3_ms: float = derived("third quartile", positive=True)
    mean_ms: float = derived("mean", positive=True)
    std_ms: float | None = derived("standard deviation; empty for a single sample", minimum=0)
    min_ms: float = derived("least sample", minimum=0)
    max_ms: float = derived("largest sample", positive=True)
    rel_error: float | None = derived(
        "standard error of the median over the median; empty for a single sample", minimum=0
    )

    @classmethod
    def derive(cls, reading: Reading) -> dict[str, Any]:
        """Return the summary of the samples, the outcome `unstable` where their median cannot be trusted, and more."""
        if not reading.row.get("samples_ms"):
            return {}
        found, why = summarise(reading.row["samples_ms"]), cls.why_unstable(reading)
        outcome = {"status": "unstable", "reason": "; ".join([*filter(None, [reading.row.get("reason"), why])])}
        return {**found, **(outcome if why else {}), **cls.timed_columns(reading, found["median_ms"])}

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Return what else follows of a row that has a time: rates, for one."""
        return {}

    @classmethod
    def why_unstable(cls, reading: Reading) -> str | None:
        """Say why the median cannot be trusted; None where it can."""
        row, limit = reading.row, reading.settings["unstable_rel_error"]
        return why_unstable(row["samples_ms"], row.get("slowdowns") or (), limit)


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
    gpu_idle_pct: float | None = derived("share of the wall time in which none ran", minimum=0)
    launches: int | None = column("kernels and copies a step", minimum=0)
    limited_by: str | None = derived(
        "host: the GPU idles 20% or more; communication: nothing else runs for 20% or more; else gpu",
        allowed=("host", "communication", "gpu"),
    )
    exposed_communication_ms: float | None = column(
        "part of gpu_busy_ms in which only collectives ran, be it to wait for another rank", minimum=0
    )
    profiled_ms: float | None = column("wall time of the profiled steps", positive=True)
    energy_j: float | None = column("energy a step, of a second of steps or more, all GPUs", positive=True)
    tokens_per_j: float | None = derived("tokens over the energy", positive=True)
    pinned_core: int | None = column(
        "core that the launching threads, of several ranks the first's, were kept on, where they were", minimum=0
    )

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Return what the GPU's idle time and energy say of the step."""
        energy_j = reading.row.get("energy_j")
        per_energy = {"tokens_per_j": cls.tokens_a_step(reading) / energy_j} if energy_j else {}
        return idle_columns(reading.row, median_ms) | per_energy

    @classmethod
    def tokens_a_step(cls, reading: Reading) -> int:
        """Return the tokens of a step, over all ranks; the batch is an axis or a setting."""
        cell = reading.cell
        batch_size = cell.batch_size if hasattr(cell, "batch_size") else reading.settings["batch_size"]
        return batch_size * cell.context_length


def idle_columns(row: Mapping[str, Any], wall_ms: float) -> dict[str, Any]:
    """Return the share of a step's wall time in which the GPU did nothing, and what the step waits for.

    Nothing where the profiled step tells nothing of the timed ones: then the GPU may have idled longer, but not less.
    """
    busy_ms, exposed_ms = row.get("gpu_busy_ms"), row.get("exposed_communication_ms") or 0.0
    if busy_ms is None:
        return {}
    idle_pct = 100 * max(0.0, wall_ms - busy_ms) / wall_ms
    if idle_pct >= 100 * HOST_LIMIT:
        return {"gpu_idle_pct": idle_pct, "limited_by": "host"}
    if exposed_ms and (row.get("profiled_ms") or 0.0) > MOST_HELD_UP * wall_ms:
        return {}
    limit = "communication" if exposed_ms >= COMMUNICATION_LIMIT * wall_ms else "gpu"
    return {"gpu_idle_pct": idle_pct, "limited_by": limit}


@dataclass(frozen=True, kw_only=True)
class RanksStepRow(GpuStepRow):
    """Samples of a step that ranks make together in turns with others, or of a phase of it."""

    WHOLE_STEP: ClassVar[Mapping[str, Any]] = {"phase": "train_step", "clock": "host"}

    turns: int = column("turns that the samples come from, each with as many", minimum=1)
    tokens: int = derived("tokens per step over all ranks: batch size times context length times ranks", minimum=1)

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Add the tokens of a step."""
        return super().timed_columns(reading, median_ms) | {"tokens": cls.tokens_a_step(reading)}

    @classmethod
    def tokens_a_step(cls, reading: Reading) -> int:
        """Return the tokens of a step, over all ranks."""
        cell = reading.cell
        return cell.world_size * cell.batch_size_per_rank * cell.context_length

    @classmethod
    def why_unstable(cls, reading: Reading) -> str | None:
        """Judge also by how far the turns lie apart; what the whole step would not notice is no reason for doubt."""
        row, limit = reading.row, reading.settings["unstable_rel_error"]
        whole = reading.beside(cls.KEYS, **cls.WHOLE_STEP)
        step_ms = summarise(whole["samples_ms"])["median_ms"] if whole else 0.0
        return why_unstable(row["samples_ms"], row.get("slowdowns") or (), limit, row["turns"], step_ms)


@dataclass(frozen=True, kw_only=True)
class BudgetRow(Row):
    """Where a step's time goes, on the first rank: the time that a kind of work adds to those listed before it."""

    category: str = column(
        "kind of work by kernel name, in order; communication is what no other work hides; idle: no kernel ran",
        allowed=(*CATEGORIES, IDLE),
    )
    work_ms: float = column("time that it adds to a profiled step", minimum=0)
    launches: int = column("kernels and copies a step", minimum=0)


def summarise(samples_ms: Sequence[float]) -> dict[str, Any]:
    """Return n, median, quartiles, mean, standard deviation, extremes in ms, and the median's relative error.

    Standard deviation and relative error of a single sample are None: unknown, not 0.
    """
    q1, median, q3 = quartiles(samples_ms)
    several = len(samples_ms) > 1
    return {
        "n": len(samples_ms),
        "median_ms": median,
        "q1_ms": q1,
        "q3_ms": q3,
        "mean_ms": statistics.fmean(samples_ms),
        "std_ms": statistics.stdev(samples_ms) if several else None,
        "min_ms": min(samples_ms),
        "max_ms": max(samples_ms),
        "rel_error": rel_error(samples_ms) if several else None,
    }


def why_unstable(
    samples_ms: Sequence[float],
    slowdowns: Sequence[str],
    unstable_rel_error: float,
    turns: int = 1,
    step_ms: float = 0.0,
) -> str | None:
    """Say why the median of these samples is not known well enough; None where it is. This is the one rule for it.

    slowdowns: why the hardware held the clock down at any time while the samples were taken; a power cap is no such
    reason. unstable_rel_error: the standard error of the median over the median from which on it is not known. turns:
    of how many turns, one after the other and each with as many samples, whose own differences count as well. step_ms:
    the median of the step of which this is a phase, 0 for a time that stands alone.
    """
    if slowdowns:
        return f"GPU slowed down: {', '.join(slowdowns)}"
    median_ms = statistics.median(samples_ms)
    negligible_ms = NEGLIGIBLE_SHARE * unstable_rel_error * step_ms
    if turns > 1:
        medians_ms = [statistics.median(turn) for turn in _in_turns(samples_ms, turns)]
        # The standard error of the mean of turns.
        error_ms = statistics.stdev(medians_ms) / turns**0.5
        if error_ms > max(unstable_rel_error * median_ms, negligible_ms):
            return f"rounds lie {max(medians_ms) / min(medians_ms) - 1:.0%} apart"
    error = rel_error(samples_ms)
    if len(samples_ms) > 1 and error > unstable_rel_error and error * median_ms > negligible_ms:
        return f"median known to {error:.1%} only" if error < 1 else "median unknown: its samples are too far apart"
    return None


def _in_turns(samples_ms: Sequence[float], turns: int) -> list[Sequence[float]]:
    each, rest = divmod(len(samples_ms), turns)
    if not each or rest:
        raise ValueError(f"{len(samples_ms)} samples are not of {turns} turns with as many each")
    return [samples_ms[start : start + each] for start in range(0, len(samples_ms), each)]
