"""Rows of the tensor_parallel stage: measured and predicted step times, bytes sent, work by kind, and rates."""

from dataclasses import dataclass
from statistics import median
from typing import Any

from pipeline.cells.rows import Reading, Row, RowTypes, column, derived
from pipeline.cells.timed_rows import BudgetRow, RanksStepRow, TimedRow
from pipeline.formulas.collectives import all_reduce_bus_factor, bus_factor
from pipeline.stages.tensor_parallel.cell import COLLECTIVES, EVERY_IMPL, MEASURES, RATES
from pipeline.stages.tensor_parallel.prediction import PASSES, Rates, predicted, shares
from pipeline.ways.cell import TRAIN_STEP


@dataclass(frozen=True, kw_only=True)
class MeasuredRow(Row):
    """Columns of all rows except rates: the way, and what is measured."""

    measures: str = column("what the row measures", allowed=MEASURES)
    impl: str = column(
        "none: one process does all the work; tensor: parallelize_module divides matrices; sequence: and what lies"
        " between them, by tokens; fsdp: fully_shard; fsdp_tensor: fsdp and tensor; context: context_parallel and"
        " fully_shard",
        allowed=EVERY_IMPL,
    )


@dataclass(frozen=True, kw_only=True)
class StepTime(RanksStepRow, MeasuredRow):
    """Time of a step or of one of its phases by one clock; each sample is the slowest rank's."""

    KEYS = ("impl", "phase", "clock")

    phase: str = column("part of the step, or all of it", allowed=(*PASSES, "optimizer", TRAIN_STEP))
    clock: str = column("host: a synchronize on both sides; cuda_events: by the GPU", allowed=("host", "cuda_events"))
    loss: float | None = column("loss over all ranks, before any update", minimum=0)
    loss_error: float | None = column("relative difference from the loss of one process", minimum=0)
    gradient_error: float | None = column(
        "norm of the difference from one process' gradient, over its norm, for the worst parameter", minimum=0
    )
    worst_parameter: str | None = column("the parameter with this gradient_error")
    peak_bytes: int | None = column("peak memory that torch allocated on the fullest rank", minimum=0)
    compute_ms: float | None = derived("time of the products by formula, at the rate of a large one", minimum=0)
    communication_ms: float | None = derived(
        "time to send the bytes by formula, at the rate of an all-reduce as large", minimum=0
    )
    overlapped_ms: float | None = derived(
        "predicted if computing and communicating overlap: the longer of the two in each pass", positive=True
    )
    in_turn_ms: float | None = derived("predicted if they take turns: their sum", positive=True)
    over_prediction: float | None = derived("median time over in_turn_ms", positive=True)
    predicted_bytes: float | None = derived("bytes that each rank sends by formula", minimum=0)
    sent_bytes: float | None = derived("least bytes that each rank sends for the calls of a step", minimum=0)

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Add what the formulas predict: for a training step both passes together, without the optimizer."""
        found, row = super().timed_columns(reading, median_ms), reading.row
        rates = _rates(reading)
        passes = PASSES if row["phase"] == TRAIN_STEP else [name for name in PASSES if name == row["phase"]]
        if rates is None or not passes:
            return found
        works = [predicted(row["impl"], reading.cell, reading.settings["vocab_size"], name) for name in passes]
        compute_ms, communication_ms = (
            sum(times) for times in ([w.compute_ms(rates) for w in works], [w.communication_ms(rates) for w in works])
        )
        return found | {
            "compute_ms": compute_ms,
            "communication_ms": communication_ms,
            "overlapped_ms": sum(max(w.compute_ms(rates), w.communication_ms(rates)) for w in works),
            "in_turn_ms": compute_ms + communication_ms,
            "over_prediction": median_ms / (compute_ms + communication_ms),
            "predicted_bytes": sum(w.activation_bytes + w.weight_bytes for w in works),
            **({"sent_bytes": _sent_bytes(reading)} if row["phase"] == TRAIN_STEP else {}),
        }

    @classmethod
    def tokens_per_step(cls, reading: Reading) -> int:
        """Return the tokens of a step, over all ranks."""
        return reading.cell.batch_size * reading.cell.context_length


@dataclass(frozen=True, kw_only=True)
class Traffic(MeasuredRow):
    """Bytes of one kind of collective in one step."""

    KEYS = ("impl", "collective")

    collective: str = column("collective of torch.distributed", allowed=COLLECTIVES)
    calls: int = column("calls per step", minimum=0)
    measured_bytes: int = column("bytes of the calls' tensors", minimum=0)


@dataclass(frozen=True, kw_only=True)
class BudgetItem(BudgetRow, MeasuredRow):
    """Where a step's time goes on the first rank: the time each kind of work adds to those before it."""

    KEYS = ("impl", "category")


@dataclass(frozen=True, kw_only=True)
class Rate(TimedRow):
    """A rate that predictions are based on: a product on the first rank while all compute, or an all-reduce."""

    KEYS = ("rate",)
    WORK = ("side", "size_bytes")

    measures: str = column("what the row measures", allowed=MEASURES)
    rate: str = column(
        "matmul: of two square matrices; allreduce_*: of as many bytes as a step's activations between two layers, or"
        " as a block's weights",
        allowed=RATES,
    )
    side: int | None = column("rows and columns of each matrix", minimum=1)
    size_bytes: int | None = column("size of each rank's tensor", minimum=1)
    tflops_per_s: float | None = derived("10^12 multiplications and additions per second", positive=True)
    busbw_gb_per_s: float | None = derived("bus bandwidth: 10^9 bytes per second that each rank sends", positive=True)

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Return the rate."""
        if reading.row["rate"] == "matmul":
            return {"tflops_per_s": 2 * reading.row["side"] ** 3 / median_ms / 1e9}
        sent_bytes = all_reduce_bus_factor(reading.cell.world_size) * reading.row["size_bytes"]
        return {"busbw_gb_per_s": sent_bytes / median_ms / 1e6}


def _rates(reading: Reading) -> Rates | None:
    """Return the rates in the cell's record; None if any is missing."""
    rows = {row["rate"]: row for row in reading.rows if row.get("measures") == "rate"}
    if not {*RATES} <= {*rows}:
        return None
    seconds = {name: median(row["samples_ms"]) / 1e3 for name, row in rows.items()}
    factor = all_reduce_bus_factor(reading.cell.world_size)
    sent = {name: factor * rows[name]["size_bytes"] / seconds[name] for name in RATES[1:]}
    return Rates(2 * rows["matmul"]["side"] ** 3 / seconds["matmul"], *sent.values())


def _sent_bytes(reading: Reading) -> float | None:
    own = [row for row in reading.rows if row.get("measures") == "traffic" and row.get("impl") == reading.row["impl"]]
    return sum(_factor(row, reading.cell.world_size) * row["measured_bytes"] for row in own) if own else None


def _factor(row: Any, ranks: int) -> float:
    """Return the bytes that a rank sends per byte of a call's tensors; an all-to-all here sends all of them."""
    if row["collective"] == "alltoall_base":
        return 1.0
    if row["impl"] == "fsdp_tensor":  # tensor parallelism does the all-reduces, FSDP the rest
        ranks = shares("fsdp_tensor", ranks)[row["collective"] == "allreduce"]
    return bus_factor(row["collective"], ranks)


ROW_TYPES = RowTypes(dict(zip(MEASURES, (StepTime, Traffic, BudgetItem, Rate), strict=True)), kind_column="measures")
