"""Rows of the health stage: each GPU's NVML readings, the times of each work and link, and which are slow."""

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pipeline.cells.rows import Reading, Row, RowTypes, column, derived
from pipeline.cells.timed_rows import TimedRow
from pipeline.stages.health.cell import KINDS, LOADS, WORKS
from pipeline.stages.health.outliers import Standing, standing

# Being idle, or at the power limit, is normal.
HARMLESS = ("gpu_idle", "sw_power_cap")
MOST_IDLE_PCT = 5
FINDINGS = ("ecc", "row_remaps", "pcie", "nvlinks", "nvlink_recoveries", "throttled", "in_use")
# A copy within a GPU reads and writes its memory; a copy over a link sends it once.
PASSES = {"rate": 2, "link": 1}


@dataclass(frozen=True, kw_only=True)
class OfGpu(Row):
    """Columns of all rows: the GPU, and what the row is about."""

    kind: str = column(
        "gpu: its state; rate: times of one kind of work; link: times of copies to another GPU", allowed=KINDS
    )
    gpu_index: int = column("the driver's number of the GPU; for a link, of the one that sends", minimum=0)
    uuid: str = column("its UUID")
    model: str = column("its model")


@dataclass(frozen=True, kw_only=True)
class GpuState(OfGpu):
    """One GPU: errors, links, and its state under load; what NVML does not report is empty, `absent` says why."""

    KEYS = ("kind", "gpu_index")

    utilization_before_pct: int | None = column("lowest load in the two seconds before anything ran here", minimum=0)
    ecc_corrected: int | None = column("memory errors corrected since the driver started", minimum=0)
    ecc_uncorrected: int | None = column("memory errors not corrected since the driver started", minimum=0)
    ecc_corrected_ever: int | None = column("memory errors corrected in the card's lifetime", minimum=0)
    ecc_uncorrected_ever: int | None = column("memory errors not corrected in the card's lifetime", minimum=0)
    failed_row_remaps: int | None = column("1: a bad row of memory could not be replaced", minimum=0)
    max_pcie_generation: int | None = column("highest PCIe generation of card and slot", minimum=1)
    max_pcie_width: int | None = column("most PCIe lanes of card and slot", minimum=1)
    nvlinks: int | None = column("NVLinks that the card has", minimum=0)
    nvlinks_up: int | None = column("NVLinks that are up", minimum=0)
    nvlink_replays: int | None = column("transfers repeated during the measurement, over all links", minimum=0)
    nvlink_recoveries: int | None = column("link recoveries after a loss during the measurement", minimum=0)
    nvlink_crc_errors: int | None = column("wrong checksums during the measurement, over all links", minimum=0)
    mean_sm_clock_mhz: float | None = derived("mean SM clock under load", minimum=0)
    mean_memory_clock_mhz: float | None = derived("mean memory clock under load", minimum=0)
    mean_power_w: float | None = derived("mean power under load", minimum=0)
    max_temperature_c: float | None = derived("highest temperature under load")
    pcie_generation: int | None = derived("highest PCIe generation seen under load", minimum=0)
    pcie_width: int | None = derived("most PCIe lanes seen under load", minimum=0)
    sm_clocks_mhz: list[float] | None = column("SM clock every quarter of a second under load", minimum=0)
    memory_clocks_mhz: list[float] | None = column("memory clock at the same times", minimum=0)
    powers_w: list[float] | None = column("power drawn at the same times", minimum=0)
    temperatures_c: list[float] | None = column("temperature at the same times")
    pcie_generations: list[int] | None = column("PCIe generation at the same times", minimum=0)
    pcie_widths: list[int] | None = column("PCIe lanes at the same times", minimum=0)
    throttle_reasons: list[str] | None = column("what held the SM clock down under load")
    absent: list[str] | None = column("what NVML does not report for this card, and its reason")
    findings: list[str] | None = derived("problems found", allowed=FINDINGS)

    @classmethod
    def derive(cls, reading: Reading) -> dict[str, Any]:
        """Return means and extremes of the readings under load, and the findings."""
        row = reading.row
        if row["status"] != "ok":
            return {}
        seen = {
            "mean_sm_clock_mhz": _of(fmean, row.get("sm_clocks_mhz")),
            "mean_memory_clock_mhz": _of(fmean, row.get("memory_clocks_mhz")),
            "mean_power_w": _of(fmean, row.get("powers_w")),
            "max_temperature_c": _of(max, row.get("temperatures_c")),
            "pcie_generation": _of(max, row.get("pcie_generations")),
            "pcie_width": _of(max, row.get("pcie_widths")),
        }
        return seen | {"findings": _findings({**row, **seen}, reading)}


def _of(summary: Any, values: list[float] | None) -> Any:
    return summary(values) if values else None


def _findings(row: dict[str, Any], reading: Reading) -> list[str]:
    """Return the findings; a counter that NVML does not report counts as sound."""
    same_model = [each for each in reading.rows if each["kind"] == "gpu" and each.get("model") == row["model"]]
    most_up = max((each.get("nvlinks_up") or 0 for each in same_model), default=0)
    pcie = [(row.get(f"pcie_{what}"), row.get(f"max_pcie_{what}")) for what in ("generation", "width")]
    stands_out = {
        "ecc": bool(row.get("ecc_uncorrected")),
        "row_remaps": bool(row.get("failed_row_remaps")),
        "pcie": any(now and most and now < most for now, most in pcie),
        "nvlinks": row.get("nvlinks_up") is not None and row["nvlinks_up"] < most_up,
        "nvlink_recoveries": bool(row.get("nvlink_recoveries")),
        "throttled": bool(set(row.get("throttle_reasons") or ()) - set(HARMLESS)),
        "in_use": (row.get("utilization_before_pct") or 0) > MOST_IDLE_PCT,
    }
    return [name for name in FINDINGS if stands_out[name]]


@dataclass(frozen=True, kw_only=True)
class Comparable(OfGpu, TimedRow):
    """Times of one call, and how its rate compares with that of the other GPUs or links of its kind."""

    WORK = ("size",)

    size: int = column("side of the matrices, or bytes of the tensor", minimum=1)
    calls: int = column("calls per sample; its time is divided by them", minimum=1)
    gb_per_s: float | None = derived("bytes read and written, or sent over a link, over the median time", positive=True)
    below_pct: float | None = derived("how far its rate is below the median of the others; negative: above")
    chance: float | None = derived(
        "probability of samples this far below if it were at most 3% slower (sign test)", minimum=0
    )
    verdict: str = derived(
        "slow: over 3% below, with false alarms in at most 1% of runs", allowed=("sound", "slow", "no other")
    )

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Return the rate, and how it compares."""
        row = reading.row
        moved = PASSES[row["kind"]] * row["size"]
        rate = {} if row.get("work") == "matmul" else {"gb_per_s": moved / median_ms / 1e6}
        found = _standing(reading)
        if found is None:
            return rate | {"verdict": "no other"}
        tests = sum("samples_ms" in each for each in reading.rows)
        verdict = "slow" if found.is_slow(tests) else "sound"
        return rate | {"below_pct": found.below_pct, "chance": found.chance, "verdict": verdict}


def _standing(reading: Reading) -> Standing | None:
    """Compare a row with those that differ only in the GPU or the pair of GPUs."""
    shared_columns = ("kind", "model", "work", "load", "path", "size")
    comparable = [
        each
        for each in reading.rows
        if "samples_ms" in each and all(each.get(name) == reading.row.get(name) for name in shared_columns)
    ]
    return standing(_name(reading.row), {_name(each): each["samples_ms"] for each in comparable})


def _name(row: Any) -> str:
    return f"{row['gpu_index']}-{row.get('peer_index')}"


@dataclass(frozen=True, kw_only=True)
class Rate(Comparable):
    """One GPU at one kind of work, alone or while all GPUs work."""

    KEYS = ("kind", "gpu_index", "work", "load")

    work: str = column("matmul: a product of two fp16 matrices; copy: within the GPU's memory", allowed=WORKS)
    load: str = column("alone; together: all GPUs do the same work at once", allowed=LOADS)
    tflops_per_s: float | None = derived("10^12 multiplications and additions per second", positive=True)

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Add the rate of products."""
        is_product = reading.row["work"] == "matmul"
        rate = {"tflops_per_s": 2 * reading.row["size"] ** 3 / median_ms / 1e9} if is_product else {}
        return super().timed_columns(reading, median_ms) | rate


@dataclass(frozen=True, kw_only=True)
class Link(Comparable):
    """Copies from one GPU to another, one direction at a time."""

    KEYS = ("kind", "gpu_index", "peer_index")

    peer_index: int = column("the GPU that receives", minimum=0)
    path: str = column("how the two GPUs are connected")
    is_direct: bool = column("whether one can read the other's memory; else copies pass through the host")


ROW_TYPES = RowTypes({"gpu": GpuState, "rate": Rate, "link": Link}, kind_column="kind")
