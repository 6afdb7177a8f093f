"""Rows of the precision stage, by experiment: sums, data types under autocast, layer norms, and their eps."""

from dataclasses import dataclass
from typing import Any

from pipeline.cells.rows import Reading, Row, RowTypes, column, derived
from pipeline.stages.precision import roundoff
from pipeline.stages.precision.cases import AUTOCAST_DTYPES, FORMAT_NAMES, METHODS
from pipeline.stages.precision.roundoff import FORMATS

LOST = "share of rows whose variance"


@dataclass(frozen=True, kw_only=True)
class DeviceRow(Row):
    """Columns of all rows of the stage."""

    device_name: str = column("model of the CPU or GPU that the cell ran on")


@dataclass(frozen=True, kw_only=True)
class RunningSum(DeviceRow):
    """A running sum from 0 of one addend, compared with the prediction from unit roundoff."""

    KEYS = ("accumulator", "addend_dtype", "cast", "steps", "addend")

    accumulator: str = column("data type of the sum", allowed=FORMAT_NAMES)
    addend_dtype: str = column("data type of the addend", allowed=FORMAT_NAMES)
    cast: str = column(
        "none: both have the same type; implicit: the addition promotes; explicit: the addend is cast first",
        allowed=("none", "implicit", "explicit"),
    )
    steps: int = column("how many times the addend is added", minimum=1)
    addend: float = column("the addend, before rounding to its type", positive=True)
    expected: float = derived("steps times the addend", positive=True)
    result: float = column("the sum after the last step")
    stored_addend: float = column("the addend in its type", minimum=0)
    predicted_result: float = derived("prediction of result")
    error: float = derived("result minus expected")
    rel_error: float = derived("absolute value of error over expected", minimum=0)
    addend_error: float = derived("part of the error caused by rounding the addend")
    predicted_addend_error: float = derived("prediction of addend_error")
    rounding_error: float = derived("part of the error caused by rounding the sums")
    rounding_error_bound: float = derived("upper bound of rounding_error", minimum=0)
    stalled_at_step: int | None = column(
        "step after which the sum stays constant; empty if it grows to the end", minimum=1
    )
    predicted_stalled_at_step: int | None = derived("prediction of stalled_at_step", minimum=0)
    stall: float | None = column(
        "the sum at which an addition changes nothing; empty if every addition changed it", minimum=0
    )
    predicted_stall: float = derived("prediction of stall", minimum=0)
    stall_approached_from: float = column("the sum from which the search for the stall started")
    curve_steps: list[int] = column("selected steps, including the first and the last", minimum=1)
    curve_sums: list[float] = column("the sum after each of these steps")
    curve_rel_errors: list[float] = derived("absolute value of the relative error of each of these sums", minimum=0)

    @classmethod
    def derive(cls, reading: Reading) -> dict[str, Any]:
        """Add the errors, split into addend and sum rounding, and the predictions."""
        row = reading.row
        if row["status"] != "ok":
            return {}
        steps, addend, accumulator = row["steps"], row["addend"], FORMATS[row["accumulator"]]
        expected, rounded = steps * addend, FORMATS[row["addend_dtype"]].rounded(addend)
        predicted, stalled_at_step = roundoff.running_sum(rounded, steps, accumulator)
        curve = zip(row["curve_steps"], row["curve_sums"], strict=True)
        return {
            "expected": expected,
            "predicted_result": predicted,
            "error": row["result"] - expected,
            "rel_error": abs(row["result"] - expected) / expected,
            "addend_error": steps * (row["stored_addend"] - addend),
            "predicted_addend_error": steps * (rounded - addend),
            "rounding_error": row["result"] - steps * row["stored_addend"],
            "rounding_error_bound": roundoff.rounding_error_bound(rounded, steps, accumulator),
            "predicted_stalled_at_step": stalled_at_step,
            "predicted_stall": roundoff.stall(rounded, accumulator),
            "curve_rel_errors": [abs(total - step * addend) / (step * addend) for step, total in curve],
        }


@dataclass(frozen=True, kw_only=True)
class ObservedDtype(DeviceRow):
    """The data type of one part of the toy model's training step under autocast."""

    KEYS = ("autocast_dtype", "component", "detail")

    autocast_dtype: str = column("data type of autocast", allowed=AUTOCAST_DTYPES)
    component: str = column("part of the step")
    detail: str = column("which of its tensors, statistics or losses; empty if there is only one")
    observed_dtype: str = column("its data type; several are joined by a slash")


@dataclass(frozen=True, kw_only=True)
class LayerNorm(DeviceRow):
    """Layer norm of one input in one format by one method, compared with fp64 and with predictions from the format.

    torch's kernel returns no statistics and has no predictions.
    """

    KEYS = ("dtype", "method", "input", "d_model", "magnitude")

    dtype: str = column("format of the input", allowed=FORMAT_NAMES)
    method: str = column(
        "in_format: every value and running sum in the format; fp32_sums: the sums in fp32; kernel: torch's own",
        allowed=METHODS,
    )
    input: str = column("normal: random numbers; alternating: +1 and -1", allowed=("normal", "alternating"))
    d_model: int = column("features of a row", minimum=1)
    magnitude: float = column("standard deviation of the input", positive=True)
    predicted_overflow_magnitude: float | None = column("smallest magnitude whose variance overflows", positive=True)
    predicted_overflow_share: float | None = column(f"{LOST} is predicted to overflow at this magnitude", minimum=0)
    predicted_vanish_magnitude: float | None = column("largest magnitude whose variance rounds to 0", positive=True)
    predicted_vanish_share: float | None = column(f"{LOST} is predicted to round to 0 at this magnitude", minimum=0)
    predicted_variance_ratio: float | None = derived("prediction of variance_ratio for inputs of +1 and -1", minimum=0)
    overflow_share: float | None = column(f"{LOST} is not finite", minimum=0)
    vanish_share: float | None = column(f"{LOST} is 0", minimum=0)
    variance_ratio: float | None = column("variance over the true one, median over the rows; empty if not finite")
    variance_rel_error: float | None = column(
        "relative error of the variance, median over the rows; empty if not finite", minimum=0
    )
    mean_error_over_std: float | None = column(
        "error of the mean over the standard deviation, median over the rows; empty if not finite", minimum=0
    )
    output_max_error: float | None = column("largest error of the output; empty if not finite", minimum=0)
    output_half_spacing: float = column("largest error of rounding the output alone", positive=True)
    output_zero_share: float = column("share of rows whose output is all zeros", minimum=0)
    output_nonfinite_share: float = column("share of rows with numbers that are not finite", minimum=0)

    @classmethod
    def derive(cls, reading: Reading) -> dict[str, Any]:
        """Add predictions for inputs of +1 and -1: their mean is exactly 0 and every square 1."""
        row = reading.row
        if row.get("input") != "alternating" or row["method"] == "kernel":
            return {}
        sums, width = FORMATS[row["dtype"] if row["method"] == "in_format" else "fp32"], row["d_model"]
        ratio = roundoff.running_sum(1.0, width, sums)[0] / width
        return {"predicted_variance_ratio": FORMATS[row["dtype"]].rounded(ratio)}


@dataclass(frozen=True, kw_only=True)
class StoredEps(DeviceRow):
    """What remains of one eps of layer norm in one format."""

    KEYS = ("dtype", "eps")

    dtype: str = column("format of the eps", allowed=FORMAT_NAMES)
    eps: float = column("eps before it is rounded", positive=True)
    stored_eps: float = column("eps in the format", minimum=0)
    predicted_stored_eps: float = derived("prediction of stored_eps", minimum=0)
    swallowed_from_variance: float = column("smallest power of two, or 0, that adding eps does not change", minimum=0)
    predicted_swallowed_from_variance: float = derived("prediction of swallowed_from_variance", minimum=0)
    zeros_nonfinite_in_format: float = column(
        "share of outputs that are not finite in the layer norm of zeros, computed in the format", minimum=0
    )
    predicted_zeros_nonfinite: float = derived("prediction of zeros_nonfinite_in_format", minimum=0)
    zeros_nonfinite_kernel: float = column("the same share with torch's kernel", minimum=0)

    @classmethod
    def derive(cls, reading: Reading) -> dict[str, Any]:
        """Add predictions for the format."""
        if reading.row["status"] != "ok":
            return {}
        number_format = FORMATS[reading.row["dtype"]]
        stored = number_format.rounded(reading.row["eps"])
        return {
            "predicted_stored_eps": stored,
            "predicted_swallowed_from_variance": roundoff.stall(stored, number_format),
            "predicted_zeros_nonfinite": float(stored == 0),
        }


ROW_TYPES = RowTypes(
    {
        "accumulation": RunningSum,
        "autocast": ObservedDtype,
        "layer_norm": LayerNorm,
        "layer_norm_eps": StoredEps,
    },
    kind_column="experiment",
)
