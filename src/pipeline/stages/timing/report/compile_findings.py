"""What the timing tables say of torch.compile: what it gains, what it costs, and after how many steps it pays."""

import math

import pandas as pd

from pipeline.report.section import compare, mark_unstable
from pipeline.report.table_rows import ok
from pipeline.stages.timing.report.findings import sizes_by_word
from pipeline.stages.timing.report.selection import at_context, by_pass, host, main_context, ratios, unstable_by_pass


def compile_gains(rows: pd.DataFrame) -> pd.DataFrame:
    """Divide eager times by compiled ones, by the host clock: a row a pass that was run both ways.

    Precisions in which nothing was measured are left out.
    """
    longest = host(rows)[host(rows)["warmup_steps"] == rows["warmup_steps"].max()]
    keys = ["precision", "context_length", "size", "phase"]
    gains = ratios(longest[longest["mode"] == "eager"], longest[longest["mode"] == "compiled"], keys)
    return gains[gains["precision"].isin(ok(gains)["precision"])]


def payback(rows: pd.DataFrame) -> pd.DataFrame:
    """Give compile time, time saved a step, and the steps after which the one is worth the other.

    Columns precision, context_length, size, compile_ms, saved_ms, steps; steps is NaN where nothing is saved.
    """
    cell = ["precision", "context_length", "size"]
    longest = ok(host(rows)[host(rows)["warmup_steps"] == rows["warmup_steps"].max()])
    step = longest[longest["phase"] == "train_step"].set_index([*cell, "mode"])["median_ms"].unstack("mode")
    first = longest[longest["phase"] == "compile"].set_index(cell)["median_ms"]
    if first.empty or "eager" not in step or "compiled" not in step:
        return pd.DataFrame(columns=[*cell, "compile_ms", "saved_ms", "steps"])
    found = first.rename("compile_ms").reset_index()
    steps = step.loc[pd.MultiIndex.from_frame(found[cell])].reset_index(drop=True)
    found["saved_ms"] = steps["eager"] - steps["compiled"]
    saves = found["saved_ms"] > 0
    found["steps"] = (found["compile_ms"] / found["saved_ms"]).where(saves).map(math.ceil, na_action="ignore")
    return found


def compilation(rows: pd.DataFrame) -> list[dict]:
    """Give, per precision, the eager time over the compiled by size at the context length shown first."""
    gains, back = ok(compile_gains(rows)), payback(rows)
    found = []
    for precision, group in gains.groupby("precision", sort=False):
        context_length = main_context(group)
        group = at_context(group, context_length)
        ratio, unstable = by_pass(group, "median_ratio"), unstable_by_pass(group)
        here = back[(back["precision"] == precision) & (back["context_length"] == context_length)]
        here = here.set_index("size")
        payback_steps = here["steps"].dropna()
        found.append(
            {
                "precision": precision,
                "context_length": context_length,
                "forward": mark_unstable(ratio["forward"], unstable["forward"]),
                "step": mark_unstable(ratio["train_step"], unstable["train_step"]),
                "sizes_by_word": sizes_by_word(group),
                "forward_word": compare(1, ratio["forward"].median()),
                "gains_more": compare(ratio["train_step"].median(), ratio["forward"].median()),
                "compile_ms": here["compile_ms"],
                "payback_steps": mark_unstable(payback_steps, unstable["train_step"][payback_steps.index]),
            }
        )
    return found
