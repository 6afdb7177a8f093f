"""Layer norm: what of it is sensitive to the data type, and what its eps becomes."""

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.page_parts import Problem, Table, say
from pipeline.report.section import listing, percent
from pipeline.stages.precision.cases import FORMAT_NAMES
from pipeline.stages.precision.report.facts import brief

# How many times more exact sums in fp32 must make the variance to be worth a word.
WORTH_IT = 2.0
LOW_FORMATS = ("fp16", "bf16")
STATISTICS_WORDS = {"in_format": "all in the format", "fp32_sums": "sums in fp32"}


def of_method(rows: pd.DataFrame, dtype: str, method: str) -> pd.DataFrame:
    """Keep the normal inputs of one format and method, the smallest first."""
    wanted = (rows["dtype"] == dtype) & (rows["method"] == method) & (rows["input"] == "normal")
    return rows[wanted].sort_values("magnitude")


def variance_error(rows: pd.DataFrame, dtype: str, method: str) -> float:
    """Return the relative error of the variance of inputs of size one."""
    sweep = of_method(rows, dtype, method)
    return float(sweep.loc[sweep["magnitude"] == 1, "variance_rel_error"].iloc[0])


def sensitive(rows: pd.DataFrame) -> list[str]:
    """Return the low formats whose variance is clearly more exact with its sums in fp32."""
    return [
        dtype
        for dtype in LOW_FORMATS
        if variance_error(rows, dtype, "in_format") >= WORTH_IT * variance_error(rows, dtype, "fp32_sums")
    ]


def answer(rows: pd.DataFrame) -> Markdown:
    """Say how far the variance is off with all in the format, and with its sums in fp32."""
    off = {
        method: listing(f"{percent(variance_error(rows, dtype, method))} in {dtype}" for dtype in LOW_FORMATS)
        for method in STATISTICS_WORDS
    }
    return say(
        "Layer norm's variance is off by {own} with everything in the format, by {fp32} with its sums in fp32.",
        own=off["in_format"],
        fp32=off["fp32_sums"],
    )


def _finite_to(rows: pd.DataFrame, dtype: str, method: str = "in_format") -> float:
    sweep = of_method(rows, dtype, method)
    return float(sweep.loc[sweep["overflow_share"] == 0, "magnitude"].max())


def table(rows: pd.DataFrame) -> Table:
    """Write the errors at size one, and the largest input whose variance is finite, beside the prediction."""
    lines = []
    for dtype in FORMAT_NAMES:
        for method, words in STATISTICS_WORDS.items():
            sweep = of_method(rows, dtype, method)
            at_one = sweep[sweep["magnitude"] == 1].iloc[0]
            lines.append(
                {
                    "format": dtype,
                    "method": words,
                    "error of the variance": brief(at_one["variance_rel_error"]),
                    "largest error of the output": brief(at_one["output_max_error"]),
                    "of that by rounding it": brief(at_one["output_half_spacing"]),
                    "finite up to": brief(_finite_to(rows, dtype, method)),
                    "predicted limit": brief(sweep["predicted_overflow_magnitude"].iloc[0]),
                }
            )
    title = say(
        "Layer norm on {device}, {n} features; errors at a standard deviation of one, limits by the sizes tried:",
        device=rows["device"].iloc[0],
        n=f"{of_method(rows, FORMAT_NAMES[0], 'in_format')['d_model'].iloc[0]:,.0f}",
    )
    return Table(title, pd.DataFrame(lines))


def problem(norms: pd.DataFrame, eps: pd.DataFrame) -> list[Problem]:
    """Answer what is sensitive, and what bf16 changes."""
    sentences = []
    if len(norms):
        sentences.append(
            say(
                "With everything in fp16 the variance overflows beyond inputs of {fp16} and is off by {fp16_error}; in"
                " bf16 it is finite up to {bf16} but off by {bf16_error}{needs}.",
                fp16=brief(_finite_to(norms, "fp16")),
                fp16_error=percent(variance_error(norms, "fp16", "in_format")),
                bf16=brief(_finite_to(norms, "bf16")),
                bf16_error=percent(variance_error(norms, "bf16", "in_format")),
                needs=", so that its sums still belong in fp32" if "bf16" in sensitive(norms) else "",
            )
        )
    sentences += [
        say("An eps of {eps} rounds to zero in {dtype}.", eps=listing(values), dtype=dtype)
        for dtype, values in lost_eps(eps).items()
    ]
    return [Problem("benchmarking_mixed_precision (b)", Markdown(" ").join(sentences))] if sentences else []


def lost_eps(rows: pd.DataFrame) -> dict[str, list[str]]:
    """Return, by format, each eps with which a row of zeros gives numbers that are not finite."""
    if rows.empty:
        return {}
    lost = rows[rows["zeros_nonfinite_in_format"] > 0]
    return {dtype: [f"{eps:g}" for eps in group["eps"]] for dtype, group in lost.groupby("dtype", sort=False)}
