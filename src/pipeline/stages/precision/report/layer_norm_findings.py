"""What the layer-norm tables say: range, accuracy, width and eps, as tables and facts of the section's prose."""

import math

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.section import percent
from pipeline.report.tables import fold, markdown, pivot
from pipeline.stages.precision.cases import FORMAT_NAMES
from pipeline.stages.precision.report import selection
from pipeline.stages.precision.report.selection import brief, plain, shown

METHOD_WORDS = {
    "in_format": "all in the format",
    "fp32_sums": "sums in fp32",
    "kernel": "torch's kernel",
}
# Up to this many times the error of rounding the output, a kernel does nothing worse than that.
ROUNDS_ONLY = 1.1
STATISTICS_METHODS = ("in_format", "fp32_sums")


def facts(rows: pd.DataFrame) -> dict:
    """Return tables and findings on layer norm's statistics; empty where they were not measured."""
    found = shown(rows, "layer_norm")
    if found.empty:
        return {}
    normal = found[found["input"] == "normal"]
    ranges = limits(normal)
    return {
        "device": found["device"].iloc[0],
        "device_name": found["device_name"].iloc[0],
        "d_model": int(normal["d_model"].iloc[0]),
        "input_rows": int(normal["setting_input_rows"].iloc[0]),
        "range_table": range_table(ranges),
        "ranges": ranges,
        "as_predicted": sum(line["as_predicted"] for line in ranges),
        "not_as_predicted": [line for line in ranges if not line["as_predicted"]],
        "overflowed": [overflowed(normal, dtype) for dtype in FORMAT_NAMES],
        "kernel": [kernel(normal, dtype) for dtype in FORMAT_NAMES],
        "accuracy_table": markdown(accuracy(normal)),
        "accuracy": {dtype: errors(normal, dtype) for dtype in FORMAT_NAMES},
        "width_table": width_table(found[found["input"] == "alternating"]),
        "widths": widths(found[found["input"] == "alternating"]),
        "magnitudes_table": magnitudes_table(normal),
        "bf16": bf16_beside_fp16(normal, ranges),
        "devices_beside": devices_beside(rows),
    }


def limits(normal: pd.DataFrame) -> list[dict]:
    """Give, for each format and method, between which magnitudes the variance is lost, and where it is predicted."""
    found = []
    for dtype in FORMAT_NAMES:
        for method in STATISTICS_METHODS:
            sweep = _one(normal, dtype, method).sort_values("magnitude")
            found.append({"dtype": dtype, "method": METHOD_WORDS[method], **_limit(sweep)})
    return found


def _one(rows: pd.DataFrame, dtype: str, method: str) -> pd.DataFrame:
    return rows[(rows["dtype"] == dtype) & (rows["method"] == method)]


def _limit(sweep: pd.DataFrame) -> dict:
    """Bracket both limits of one sweep: the last magnitude without a lost row and the first with all rows lost."""
    overflows, vanishes = sweep["overflow_share"], sweep["vanish_share"]
    limit = {
        "finite_to": sweep.loc[overflows == 0, "magnitude"].max(),
        "infinite_from": sweep.loc[overflows == 1, "magnitude"].min(),
        "overflow": sweep["predicted_overflow_magnitude"].iloc[0],
        "kept_from": sweep.loc[vanishes == 0, "magnitude"].min(),
        "zero_to": sweep.loc[vanishes == 1, "magnitude"].max(),
        "vanish": sweep["predicted_vanish_magnitude"].iloc[0],
    }
    return {**limit, "as_predicted": _between(limit)}


def _between(limit: dict) -> bool:
    """Tell whether both predictions lie inside what the sweep leaves open; NaN is a limit outside the sweep."""
    overflows = limit["finite_to"] < limit["overflow"] and not limit["infinite_from"] < limit["overflow"]
    vanishes = limit["vanish"] < limit["kept_from"] and not limit["vanish"] < limit["zero_to"]
    return bool(overflows and vanishes)


def range_table(ranges: list[dict]) -> str:
    """Write where the variance is lost, measured and predicted."""
    return markdown(
        pd.DataFrame(
            {
                "format": line["dtype"],
                "method": line["method"],
                "variance 0 up to": _magnitude(line["zero_to"]),
                "predicted": brief(line["vanish"]),
                "finite up to": _magnitude(line["finite_to"]),
                "infinite from": _magnitude(line["infinite_from"]),
                "predicted ": brief(line["overflow"]),
            }
            for line in ranges
        )
    )


def _magnitude(value: float) -> str:
    return "not in the sweep" if pd.isna(value) else brief(value)


def overflowed(normal: pd.DataFrame, dtype: str) -> dict:
    """Say what becomes of the output once the variance is infinite: shares of all-zero and of non-finite rows."""
    lost = _one(normal, dtype, "in_format")
    lost = lost[lost["overflow_share"] == 1].sort_values("magnitude")
    if lost.empty:
        return {"dtype": dtype, "any": False}
    first = lost.iloc[0]
    return {
        "dtype": dtype,
        "any": True,
        "from": brief(first["magnitude"]),
        "zero": first["output_zero_share"],
        "nonfinite": first["output_nonfinite_share"],
    }


def kernel(normal: pd.DataFrame, dtype: str) -> dict:
    """Say how far torch's kernel comes over the whole sweep: its largest error over that of rounding the output."""
    sweep = _one(normal, dtype, "kernel")
    whole = sweep[(sweep["output_zero_share"] == 0) & (sweep["output_nonfinite_share"] == 0)]
    return {
        "dtype": dtype,
        "largest": brief(sweep["magnitude"].max()),
        "good_to": brief(whole["magnitude"].max()),
        "everywhere": len(whole) == len(sweep),
        "over_rounding": (whole["output_max_error"] / whole["output_half_spacing"]).max(),
    }


def accuracy(normal: pd.DataFrame) -> pd.DataFrame:
    """Give the errors at magnitude one, a line a format and method."""
    at_one = normal[normal["magnitude"] == 1]
    return pd.DataFrame(
        {
            "format": at_one["dtype"],
            "method": at_one["method"].map(METHOD_WORDS),
            "mean, over std": at_one["mean_error_over_std"].map(_brief_or_dash),
            "variance, relative": at_one["variance_rel_error"].map(_brief_or_dash),
            "largest of the output": at_one["output_max_error"].map(brief),
            "rounding the output": at_one["output_half_spacing"].map(brief),
        }
    )


def _brief_or_dash(value: float) -> str:
    return "–" if pd.isna(value) else brief(value)


def errors(normal: pd.DataFrame, dtype: str) -> dict:
    """Compare the error of the variance at magnitude one with both sums in the format and in fp32."""
    at_one = normal[normal["magnitude"] == 1]
    own, wide = (_one(at_one, dtype, method)["variance_rel_error"].iloc[0] for method in STATISTICS_METHODS)
    return {"in_format": own, "fp32_sums": wide, "gain": own / wide if wide > 0 else float("nan")}


def bf16_beside_fp16(normal: pd.DataFrame, ranges: list[dict]) -> dict:
    """Say what bf16 changes, everything kept in the format: its range is fp32's or not, and its accuracy."""
    own = {line["dtype"]: line for line in ranges if line["method"] == METHOD_WORDS["in_format"]}
    bf16, fp16 = errors(normal, "bf16"), errors(normal, "fp16")
    return {
        "range_of_fp32": own["bf16"]["infinite_from"] == own["fp32"]["infinite_from"],
        "wider": own["bf16"]["finite_to"] > own["fp16"]["finite_to"],
        "finite_to": brief(own["bf16"]["finite_to"]),
        "fp16_finite_to": brief(own["fp16"]["finite_to"]),
        "less_accurate": bf16["in_format"] > fp16["in_format"],
        "error": bf16["in_format"],
        "fp16_error": fp16["in_format"],
        "error_with_fp32_sums": bf16["fp32_sums"],
        "needs_fp32_sums": bf16["fp32_sums"] < bf16["in_format"],
        "kernel_only_rounds": kernel(normal, "bf16")["over_rounding"] <= ROUNDS_ONLY,
    }


def width_table(alternating: pd.DataFrame) -> str:
    """Write the variance of +1 and -1 over its true value by the number of features, the predicted in brackets."""
    known = alternating[alternating["predicted_variance_ratio"].notna()]
    pairs = zip(known["variance_ratio"], known["predicted_variance_ratio"], strict=True)
    cells = pd.Series([f"{plain(measured)} ({plain(predicted)})" for measured, predicted in pairs], index=known.index)
    known = known.assign(
        format=known["dtype"], method=known["method"].map(METHOD_WORDS), features=known["d_model"].map("{:,.0f}".format)
    )
    return markdown(pivot(known, ["format", "method"], "features", cells))


def widths(alternating: pd.DataFrame) -> dict:
    """Say how many variances came out as predicted, and for each format from which width on they are too small."""
    known = alternating[alternating["predicted_variance_ratio"].notna()]
    short = known[(known["variance_ratio"] < 1) & (known["method"] == "in_format")]
    return {
        "exact": int((known["variance_ratio"] == known["predicted_variance_ratio"]).sum()),
        "of": len(known),
        "short": [
            {
                "dtype": dtype,
                "from": int(group["d_model"].min()),
                "lowest": plain(group["variance_ratio"].min()),
                "at": int(group["d_model"].max()),
            }
            for dtype, group in short.groupby("dtype", sort=False)
        ],
    }


def magnitudes_table(normal: pd.DataFrame) -> str:
    """Write the largest error of the output at every magnitude, folded; rows lost are named as such."""
    cells = pd.Series([_output_cell(line) for line in normal.to_dict("records")], index=normal.index)
    lines = normal.assign(
        size=normal["magnitude"].map(_power_of_two), column=normal["dtype"] + ", " + normal["method"].map(METHOD_WORDS)
    )
    tables = [
        fold(
            f"{METHOD_WORDS[method]}: largest error of the output at every size",
            markdown(pivot(group, ["size"], "dtype", cells[group.index])),
        )
        for method, group in lines.groupby("method", sort=False)
    ]
    return Markdown("\n").join(tables)


def _power_of_two(value: float) -> str:
    return f"2^{round(math.log2(value))}".replace("-", "−")


def devices_beside(rows: pd.DataFrame) -> dict:
    """Compare the devices in which rows are lost: how many cases do not agree; empty where there is only one."""
    keys = ["dtype", "method", "input", "d_model", "magnitude"]
    shares = ["overflow_share", "vanish_share", "output_zero_share", "output_nonfinite_share"]
    found = selection.devices_beside(rows, "layer_norm", keys, shares)
    if not found:
        return {}
    differ = found["differ"]
    where = [
        f"{dtype}, {METHOD_WORDS[method]}" for dtype, method in zip(differ["dtype"], differ["method"], strict=True)
    ]
    return found | {"where": list(dict.fromkeys(where))}


def _output_cell(line: dict) -> str:
    if line["output_nonfinite_share"] > 0:
        return f"not finite in {percent(line['output_nonfinite_share'])} of rows"
    if line["output_zero_share"] > 0:
        return f"zero in {percent(line['output_zero_share'])} of rows"
    return brief(line["output_max_error"])
