"""The precision section: running sums, data types under autocast, and layer norm in low precision."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import count, number, percent, significant, text
from pipeline.report.frame import in_order, with_figures
from pipeline.report.section import Section, say
from pipeline.report.table import Columns, Table
from pipeline.stages.precision.cases import ASSIGNED_SUMS, FORMAT_NAMES, METHODS
from pipeline.stages.precision.cell import DEVICES
from pipeline.stages.precision.report_by_size import by_size_parts

LOW_FORMATS = ("fp16", "bf16")
CASTS = {"none": "", "implicit": "", "explicit": ", cast first"}
METHOD_WORDS = {"in_format": "all in the format", "fp32_sums": "sums in fp32", "kernel": "torch's kernel"}
# What the course asks for, in its order, and the losses among which its wording leaves the choice.
COMPONENTS = {
    "parameters": "parameters",
    "fc1_output": "output of the first linear layer",
    "layernorm_input": "input of layer norm",
    "layernorm_statistics": "statistics of layer norm",
    "layernorm_output": "output of layer norm",
    "logits": "logits",
    "loss": "loss",
    "gradients": "gradients of the parameters",
}
LOSSES = ("cross-entropy", "mean of the logits")


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the precision stage; of `timing` it reads the passes in fp32 and under bf16 autocast."""
    added, norms, eps = (_shown(rows, name) for name in ("accumulation", "layer_norm", "layer_norm_eps"))
    sums = _sums(added)
    return Section(
        _answer(sums, rows),
        [_curves(added), _sums_table("sums_told", _told(sums))],
        for_course=[
            _sums_table("sums_table", sums),
            _norms_table(_norms(norms)),
            _dtypes_table(with_figures(rows[rows["experiment"] == "autocast"])),
            _widths_table(norms, eps),
            *(by_size_parts(beside["timing"]) if "timing" in beside else []),
        ],
    )


def _shown(rows: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """Keep an experiment's rows with figures, of the GPU where it ran on one, else of the CPU."""
    found = with_figures(rows[rows["experiment"] == experiment])
    devices = [device for device in reversed(DEVICES) if device in set(found["device"])]
    return found[found["device"].isin(devices[:1])].reset_index(drop=True)


def _answer(sums: pd.DataFrame, rows: pd.DataFrame) -> str:
    own = sums[sums["accumulator"] == sums["addend_dtype"]].set_index("accumulator")["result"]
    if not set(FORMAT_NAMES) <= {*own.index}:
        return say("{measured} cases of low precision were measured.", measured=count(len(with_figures(rows))))
    case = ASSIGNED_SUMS[0]
    return say(
        "{steps} additions of {addend} come to {fp32} in fp32, {fp16} in fp16 and {bf16} in bf16.",
        steps=count(case.steps),
        addend=case.addend,
        **{name: significant(own[name], 6) for name in FORMAT_NAMES},
    )


# Running sums


def _sums(added: pd.DataFrame) -> pd.DataFrame:
    """Keep as many additions of as large a number as the course asks for, in all data types."""
    case = ASSIGNED_SUMS[0]
    found = added[(added["steps"] == case.steps) & (added["addend"] == case.addend)]
    agrees = found["result"] == found["predicted_result"]
    return found.assign(
        what=found["addend_dtype"] + found["cast"].map(CASTS), predicted=agrees.map({True: "yes", False: "no"})
    )


def _told(sums: pd.DataFrame) -> pd.DataFrame:
    """Keep sums in the format of their addend and sums in fp32, without the one that only casts earlier."""
    alike = sums["accumulator"] == sums["addend_dtype"]
    return sums[alike | ((sums["accumulator"] == "fp32") & (sums["cast"] != "explicit"))]


def _curves(added: pd.DataFrame) -> Chart:
    own = added[added["accumulator"] == added["addend_dtype"]]
    names = ["accumulator", "steps", "addend", "curve_steps", "curve_sums"]
    points = own[names].explode(["curve_steps", "curve_sums"]).astype({"curve_steps": float, "curve_sums": float})
    panel = [
        f"{steps:,.0f} additions of {addend:g}" for steps, addend in zip(points["steps"], points["addend"], strict=True)
    ]
    return Chart(
        "sums",
        "Running sums by the data type of sum and addend; exact, each ends at 10",
        points.assign(panel=panel),
        "line",
        Axis("curve_steps", "additions"),
        Axis("curve_sums", "sum"),
        "accumulator",
        panel="panel",
    )


def _sums_table(name: str, sums: pd.DataFrame) -> Table:
    columns: Columns = [
        ("sum in", "accumulator", text),
        ("addend in", "what", text),
        ("sum", "result", lambda value: significant(value, 8)),
        ("error", "error", number),
        ("from rounding the addend", "addend_error", number),
        ("from rounding the sums", "rounding_error", number),
        ("stalls at a sum of", "stall", number),
        ("as predicted", "predicted", text),
    ]
    case = ASSIGNED_SUMS[0]
    caption = f"After {case.steps:,} additions of {case.addend}; the error is the sum of what the two roundings add:"
    return Table(name, caption, sums, columns)


# Layer norm


def _norms(norms: pd.DataFrame) -> pd.DataFrame:
    """Return one row per format and way to compute: errors at inputs of size one, and the inputs that lose no row."""
    normal = norms[norms["input"] == "normal"]
    whole = normal[(normal["output_zero_share"] == 0) & (normal["output_nonfinite_share"] == 0)]
    keys = ["dtype", "method"]
    up_to = whole.groupby(keys)["magnitude"].max().rename("up_to").reset_index()
    found = normal[normal["magnitude"] == 1].merge(up_to, "left", keys)
    found = in_order(found, keys, {"dtype": FORMAT_NAMES, "method": METHODS})
    return found.assign(
        computed=found["method"].map(METHOD_WORDS),
        variance_pct=100 * found["variance_rel_error"].astype(float),
        spacings=found["output_max_error"].astype(float) / found["output_half_spacing"],
    )


def _norms_table(found: pd.DataFrame) -> Table:
    columns: Columns = [
        ("inputs in", "dtype", text),
        ("computed with", "computed", text),
        ("variance off by", "variance_pct", percent),
        ("output off by", "output_max_error", number),
        ("in half spacings of the format", "spacings", number),
        ("inputs up to, no row zero or infinite", "up_to", _short),
        ("overflow predicted from", "predicted_overflow_magnitude", _short),
    ]
    width = f"{found['d_model'].iloc[0]:,.0f}" if len(found) else ""
    return Table("layer_norm", f"Layer norm of normal inputs of size 1, {width} wide, against fp64:", found, columns)


def _short(value: float) -> str:
    return f"{value:.3g}"


def _widths_table(norms: pd.DataFrame, eps: pd.DataFrame) -> Table:
    """Write what stalled sums make of a variance, and which of layer norm's eps a format loses."""
    alternating = norms[(norms["input"] == "alternating") & norms["dtype"].isin(LOW_FORMATS)]
    own, summed = (alternating[alternating["method"] == method] for method in METHODS[:2])
    both = own.merge(summed, on=["dtype", "d_model"], suffixes=("", "_summed"))
    lost = (
        eps[eps["zeros_nonfinite_in_format"].astype(float) > 0]
        .groupby("dtype")["eps"]
        .agg(lambda each: ", ".join(map(number, each)))
    )
    both = both.assign(lost=both["dtype"].map(lost).fillna("none") if len(eps) else None)
    columns: Columns = [
        ("all in", "dtype", text),
        ("eps with which zeros have no finite norm", "lost", text),
        ("features", "d_model", count),
        ("variance over the true one", "variance_ratio", number),
        ("predicted", "predicted_variance_ratio", number),
        ("with sums in fp32", "variance_ratio_summed", number),
    ]
    caption = "Variance of inputs of +1 and −1 over the true one, all in the format / predicted / with sums in fp32:"
    return Table("widths", caption, both, columns, all_rows=True, across="features")


# Autocast


def _dtypes_table(seen: pd.DataFrame) -> Table:
    asked = seen[
        seen["component"].isin(list(COMPONENTS)) & ((seen["component"] != "loss") | seen["detail"].isin(LOSSES))
    ]
    asked = asked.assign(
        part=[_part(*pair) for pair in zip(asked["component"], asked["detail"], strict=True)],
        where=[f"{dtype} on {device}" for dtype, device in zip(asked["autocast_dtype"], asked["device"], strict=True)],
    )
    asked = in_order(asked, ["component", "part"], {"component": tuple(COMPONENTS)})
    joined = asked.groupby(["part", "where"], sort=False)["observed_dtype"].agg(
        lambda each: "/".join(sorted(set(each)))
    )
    wide = joined.unstack("where").reindex(asked["part"].unique()).reset_index() if len(joined) else pd.DataFrame()
    columns: Columns = [("part of the step", "part", text)]
    columns += [(f"autocast to {name}", name, text) for name in sorted(asked["where"].unique(), reverse=True)]
    return Table("dtypes", "Data types that hooks saw in a training step of the toy model:", wide, columns)


def _part(component: str, detail: str) -> str:
    return COMPONENTS[component] + (f", {detail}" if component == "loss" else "")
