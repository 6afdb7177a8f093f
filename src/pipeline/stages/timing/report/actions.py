"""What to do on this machine, by the times of training steps."""

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.outcomes import WORTH_IT
from pipeline.report.page_parts import Action, say
from pipeline.report.section import count, ms, percent, ratio
from pipeline.stages.timing.report.steps import IDLE_PCT, compile_times, gains, of_kind, precision_gains, warm


def actions(rows: pd.DataFrame, precision: str) -> list[Action]:
    """Return what to do on this machine, each only where the rows bear it out."""
    return [
        *_fill_the_gpu(rows, precision),
        *_lower_precision(rows, precision),
        *_worth_it(rows, precision, "compiled", 2, "Use `torch.compile`", _payback(rows, precision)),
        *_worth_it(rows, precision, "graph", 2, "Capture the step as a CUDA graph", Markdown()),
        *_worth_it(rows, precision, "fused", 2, "Use fused AdamW", Markdown()),
    ]


def _fill_the_gpu(rows: pd.DataFrame, precision: str) -> list[Action]:
    """Advise more work a step where the GPU idles at a short context and not, or less, at a longer one."""
    steps = of_kind(warm(rows), "eager")
    if "gpu_idle_pct" not in steps:
        return []
    steps = steps[(steps["precision"] == precision) & steps["gpu_idle_pct"].notna()]
    short = steps[steps["gpu_idle_pct"] >= IDLE_PCT]
    if short.empty:
        return []
    worst = short.loc[short["gpu_idle_pct"].idxmax()]
    longer = steps[(steps["size"] == worst["size"]) & (steps["context_length"] > worst["context_length"])]
    better = longer[longer["gpu_idle_pct"] < worst["gpu_idle_pct"]]
    if better.empty:
        return []
    best = better.loc[better["gpu_idle_pct"].idxmin()]
    why = say(
        "{size} at context {short} leaves it idle {idle} of the time, at {long} {less}: more tokens cost little.",
        size=worst["size"],
        short=int(worst["context_length"]),
        idle=percent(worst["gpu_idle_pct"] / 100),
        long=int(best["context_length"]),
        less=percent(best["gpu_idle_pct"] / 100),
    )
    return [Action(1, Markdown("**Fill the GPU first.**"), why)]


def _lower_precision(rows: pd.DataFrame, precision: str) -> list[Action]:
    if precision == "fp32":
        return []
    table = precision_gains(rows, precision)
    if table.empty or not (table["clear"] & (table["ratio"] >= WORTH_IT)).any():
        return []
    best = table.loc[table["ratio"].idxmax()]
    slower = table[(table["ratio"] < 1) & table["clear"]]
    but = Markdown()
    if len(slower):
        worst = slower.iloc[0]
        but = say(
            " Not everywhere: {size} at context {length} is slower in it.",
            size=worst["size"],
            length=int(worst["context_length"]),
        )
    why = say(
        "{size} at context {length} takes {other} instead of {base}, {gain}.{but}",
        size=best["size"],
        length=int(best["context_length"]),
        other=ms(best["other_ms"]),
        base=ms(best["base_ms"]),
        gain=ratio(best["ratio"]),
        but=but,
    )
    return [Action(1, say("**Train in {precision}.**", precision=precision), why)]


def _worth_it(rows: pd.DataFrame, precision: str, kind: str, rank: int, what: str, more: Markdown) -> list[Action]:
    """Advise another way to run the step where some model clearly gains by it, and name where it gains most."""
    table = gains(rows, "eager", kind)
    table = table[(table["precision"] == precision) & table["clear"] & (table["ratio"] >= WORTH_IT)]
    if table.empty:
        return []
    best = table.loc[table["ratio"].idxmax()]
    why = say(
        "{size} at context {length}: {base} → {other}, {gain}.{more}",
        size=best["size"],
        length=int(best["context_length"]),
        base=ms(best["base_ms"]),
        other=ms(best["other_ms"]),
        gain=ratio(best["ratio"]),
        more=more,
    )
    return [Action(rank, Markdown(f"**{what}.**"), why)]


def _payback(rows: pd.DataFrame, precision: str) -> Markdown:
    times = compile_times(rows)
    times = times[(times["precision"] == precision) & times["payback_steps"].notna()]
    if times.empty:
        return Markdown()
    best = times.loc[times["ratio"].idxmax()]
    return say(
        " Compiling takes {compile}, paid back after {steps} steps.",
        compile=ms(best["compile_ms"]),
        steps=count(best["payback_steps"]),
    )
