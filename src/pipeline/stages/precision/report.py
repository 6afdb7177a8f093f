"""The precision section: running sums, data types under autocast, and layer norm in low precision."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import number, significant, written
from pipeline.report.frame import alike, in_order, with_figures
from pipeline.report.section import Section, say
from pipeline.report.table import Table
from pipeline.stages.precision.cases import ASSIGNED_SUMS, FORMAT_NAMES, METHODS
from pipeline.stages.precision.cell import DEVICES

CASE = {"steps": ASSIGNED_SUMS[0].steps, "addend": ASSIGNED_SUMS[0].addend}
CASTS = {"none": "", "implicit": "", "explicit": ", cast first"}
# What the course asks for, in its order, and the losses among which its wording leaves the choice.
COMPONENTS = (
    *("parameters", "fc1_output", "layernorm_input", "layernorm_statistics", "layernorm_output"),
    *("logits", "loss", "gradients"),
)
LOSSES = ("cross-entropy", "mean of the logits")


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the precision stage."""
    added, norms, eps = (_shown(rows, name) for name in ("accumulation", "layer_norm", "layer_norm_eps"))
    sums = alike(added, CASE)
    return Section(
        _answer(sums, rows),
        [_curves(added), _sums(sums[(sums["addend_dtype"] == sums["accumulator"]) | (sums["addend_dtype"] == "fp16")])],
        for_course=[
            _dtypes(with_figures(rows[rows["experiment"] == "autocast"])),
            _norms(norms, eps),
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
        return say("{measured} cases of low precision were measured.", measured=len(with_figures(rows)))
    words = {name: significant(own[name], 6) for name in FORMAT_NAMES}
    return say(
        "{steps:count} additions of {addend} come to {fp32} in fp32, {fp16} in fp16 and {bf16} in bf16.",
        **CASE,
        **words,
    )


def _curves(added: pd.DataFrame) -> Chart:
    points = added[added["accumulator"] == added["addend_dtype"]].explode(["curve_steps", "curve_sums"])
    points = points.assign(panel=written(points, "{steps:count} additions of {addend:g}"))
    title = "Running sums by the data type of sum and addend; exact, each ends at 10"
    axes = Axis("curve_steps", "additions"), Axis("curve_sums", "sum")
    return Chart("sums", title, points, "line", *axes, "accumulator", panel="panel")


def _sums(sums: pd.DataFrame) -> Table:
    """Write as many additions of as large a number as the course asks for, in all data types."""
    agrees = sums["result"] == sums["predicted_result"]
    found = sums.assign(
        what=sums["addend_dtype"] + sums["cast"].map(CASTS),
        predicted=agrees.map({True: "yes", False: "no"}),
        sum=[significant(value, 8) for value in sums["result"]],
    )
    caption = (
        "After {steps:,} additions of {addend}; the error is that of rounding the addend and of rounding the sums:"
    )
    names = "accumulator what sum error addend_error rounding_error stall predicted"
    heads = {"accumulator": "sum in", "what": "addend in", "stall": "stalls at a sum of", "predicted": "as predicted"}
    return Table.of("sums_table", caption.format(**CASE), found, names, heads=heads)


def _dtypes(seen: pd.DataFrame) -> Table:
    """Write the data types of each part of a step that the course asks for, by autocast's type and device."""
    is_loss = seen["component"] == "loss"
    of_losses = pd.Series(written(seen, "loss, {detail}"), seen.index, dtype=object)
    asked = seen.assign(part=seen["component"].replace("_", " ", regex=True).mask(is_loss, of_losses))
    asked = asked[asked["component"].isin(COMPONENTS) & (~is_loss | asked["detail"].isin(LOSSES))]
    asked = asked.assign(where=written(asked, "{autocast_dtype} on {device}")).sort_values("where", ascending=False)
    asked = in_order(asked, ["component", "part"], {"component": COMPONENTS})
    types = asked.groupby(["part", "where"], sort=False)["observed_dtype"].agg(lambda each: "/".join(sorted({*each})))
    return Table.of(
        "dtypes", "", types.reset_index(), "where part observed_dtype", across="", heads={"where": "autocast to"}
    )


def _norms(norms: pd.DataFrame, eps: pd.DataFrame) -> Table:
    """Write for each format and way to compute the errors at inputs of size one, and the inputs that lose no row.

    Beside the format: which of layer norm's eps it loses.
    """
    keys = ["dtype", "method"]
    normal = norms[norms["input"] == "normal"]
    is_whole = (normal["output_zero_share"] == 0) & (normal["output_nonfinite_share"] == 0)
    up_to = normal[is_whole].groupby(keys)["magnitude"].max().rename("up_to")
    found = in_order(normal[normal["magnitude"] == 1], keys, {"dtype": FORMAT_NAMES, "method": METHODS})
    lost = eps[eps["zeros_nonfinite_in_format"].astype(float) > 0].groupby("dtype")["eps"]
    lost = lost.agg(lambda each: ", ".join(map(number, each)))
    found = found.join(up_to, on=keys)
    found = found.assign(
        lost=found["dtype"].map(lost).fillna("none") if len(eps) else None,
        computed=found["method"].replace("_", " ", regex=True),
        variance_pct=100 * found["variance_rel_error"].astype(float),
        half_spacings=found["output_max_error"].astype(float) / found["output_half_spacing"],
        largest=written(found, "{up_to:.3g}"),
        overflow=written(found, "{predicted_overflow_magnitude:.3g}"),
    )
    caption = (
        "Layer norm of normal inputs of size 1, against fp64: variance off by / output off by so many roundings of the "
        "format (half its spacing) / largest inputs with no row zero or infinite / overflow predicted at:"
    )
    names = "dtype d_model lost computed variance_pct half_spacings largest overflow"
    heads = {"lost": "eps with which zeros have no finite norm", "computed": ""}
    return Table.of("layer_norm", caption, found, names, across="", heads=heads)
