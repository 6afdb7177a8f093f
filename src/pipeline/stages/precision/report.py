"""The precision section: running sums, data types under autocast, and layer norm in low precision."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report.chart import Chart
from pipeline.report.formats import number, significant, written
from pipeline.report.frame import in_order, matching, with_values
from pipeline.report.section import Section
from pipeline.report.table import Table
from pipeline.report.words import Words
from pipeline.stages.precision.cases import ASSIGNED_SUMS, FORMAT_NAMES, METHODS
from pipeline.stages.precision.cell import DEVICES

WORDS = Words(__file__)
CASE = {"steps": ASSIGNED_SUMS[0].steps, "addend": ASSIGNED_SUMS[0].addend}
CASTS = {"none": "", "implicit": "", "explicit": ", cast first"}
# What the course asks for, in its order. It does not say which loss it means: LOSSES are two candidates.
COMPONENTS = (
    *("parameters", "fc1_output", "layernorm_input", "layernorm_statistics", "layernorm_output"),
    *("logits", "loss", "gradients"),
)
LOSSES = ("cross-entropy", "mean of the logits")


def build(rows: pd.DataFrame, other_stages: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the precision stage."""
    added, norms, eps = (_shown(rows, name) for name in ("accumulation", "layer_norm", "layer_norm_eps"))
    seen = with_values(rows[rows["experiment"] == "autocast"])
    sums = matching(added, CASE)
    for_course = [_dtypes(seen), _norms(norms, eps)]
    return Section(_answer(sums, rows), [_curves(added)], for_course=[_sums(sums), *for_course])


def _shown(rows: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """Keep an experiment's rows with values: those of the GPU if it ran on one, else of the CPU."""
    found = with_values(rows[rows["experiment"] == experiment])
    device = max(found["device"], key=DEVICES.index, default="")
    return found[found["device"] == device].reset_index(drop=True)


def _answer(sums: pd.DataFrame, rows: pd.DataFrame) -> str:
    results = sums[sums["accumulator"] == sums["addend_dtype"]].set_index("accumulator")["result"]
    if not set(FORMAT_NAMES) <= {*results.index}:
        return WORDS.say("measured", measured=len(with_values(rows)))
    return WORDS.say("answer", **CASE, **{name: significant(results[name], 6) for name in FORMAT_NAMES})


def _curves(added: pd.DataFrame) -> Chart:
    points = added[added["accumulator"] == added["addend_dtype"]].explode(["curve_steps", "curve_sums"])
    points = points.assign(panel=written(points, "{steps:count} additions of {addend:g}"))
    return WORDS.chart("sums", points, "line", "curve_steps", "curve_sums", "accumulator", panel="panel")


def _sums(sums: pd.DataFrame) -> Table:
    """Tabulate sums with the course's number of steps and addend, the addend in fp16 or in the sum's type."""
    found = sums[(sums["addend_dtype"] == "fp16") | (sums["addend_dtype"] == sums["accumulator"])]
    agrees = found["result"] == found["predicted_result"]
    found = found.assign(
        what=found["addend_dtype"] + found["cast"].map(CASTS),
        predicted=agrees.map({True: "yes", False: "no"}),
        sum=[significant(value, 8) for value in found["result"]],
    )
    names = "accumulator what sum error addend_error rounding_error stall predicted"
    return WORDS.table("sums_table", found, names)


def _dtypes(seen: pd.DataFrame) -> Table:
    """Tabulate the data types of the parts of a step that the course asks for, by autocast type and device."""
    is_loss = seen["component"] == "loss"
    required = seen[seen["component"].isin(COMPONENTS) & (~is_loss | seen["detail"].isin(LOSSES))]
    part = required["component"].replace("_", " ", regex=True).mask(is_loss, "loss, " + required["detail"].astype(str))
    required = required.assign(part=part, where=written(required, "{autocast_dtype} on {device}"))
    required = in_order(
        required.sort_values("where", ascending=False), ["component", "part"], {"component": COMPONENTS}
    )
    types = required.groupby(["part", "where"], sort=False)["observed_dtype"].agg(
        lambda each: "/".join(sorted({*each}))
    )
    return WORDS.table("dtypes", types.reset_index(), "where part observed_dtype", across="part")


def _norms(norms: pd.DataFrame, eps: pd.DataFrame) -> Table:
    """Tabulate, by format and method, the errors at magnitude one and the largest magnitude that loses no row.

    Also the values of eps that each format loses.
    """
    keys = ["dtype", "method"]
    normal = norms[norms["input"] == "normal"]
    is_whole = (normal["output_zero_share"] == 0) & (normal["output_nonfinite_share"] == 0)
    up_to = normal[is_whole].groupby(keys)["magnitude"].max().rename("up_to")
    found = in_order(normal[normal["magnitude"] == 1], keys, {"dtype": FORMAT_NAMES, "method": METHODS})
    found = found.join(up_to, on=keys)
    lost = eps[eps["zeros_nonfinite_in_format"].astype(float) > 0].groupby("dtype")["eps"]
    lost = lost.agg(lambda each: ", ".join(map(number, each)))
    found = found.assign(
        lost=found["dtype"].map(lost).fillna("none") if len(eps) else None,
        computed=found["method"].replace("_", " ", regex=True),
        variance_pct=100 * found["variance_rel_error"].astype(float),
        half_spacings=found["output_max_error"].astype(float) / found["output_half_spacing"],
        largest=written(found, "{up_to:.3g}"),
        overflow=written(found, "{predicted_overflow_magnitude:.3g}"),
    )
    names = "dtype d_model lost computed variance_pct half_spacings largest overflow"
    return WORDS.table("layer_norm", found, names, across="computed")
