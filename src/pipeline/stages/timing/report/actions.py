"""What to do on this machine, by the times of training steps."""

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.page_parts import Action, say
from pipeline.report.section import count, ms, percent, ratio
from pipeline.report.table_rows import known
from pipeline.stages.timing.report.steps import IDLE_PCT, compile_times, gains, of_kind, precision_gains, warm


def actions(rows: pd.DataFrame, precision: str) -> list[Action]:
    """Return what to do on this machine, each only where the rows bear it out."""
    over_fp32 = precision_gains(rows, precision) if precision != "fp32" else None
    return [
        *_fill_the_gpu(rows, precision),
        *([] if over_fp32 is None else _advise(over_fp32, 1, f"Train in {precision}", "precision")),
        *_advise(_of(rows, precision, "compiled"), 2, "Use `torch.compile`", "compile", _payback(rows, precision)),
        *_advise(_of(rows, precision, "graph"), 2, "Capture the step as a CUDA graph", "graph"),
        *_advise(_of(rows, precision, "fused"), 2, "Use fused AdamW (`fused=True`)", "optimizer"),
    ]


def _of(rows: pd.DataFrame, precision: str, kind: str) -> pd.DataFrame:
    table = gains(rows, "eager", kind)
    return table[table["precision"] == precision]


def _fill_the_gpu(rows: pd.DataFrame, precision: str) -> list[Action]:
    """Advise more work a step where the GPU idles at a short context, and less at a longer one."""
    steps = known(of_kind(warm(rows), "eager"), "gpu_idle_pct")
    steps = steps[steps["precision"] == precision]
    short = steps[steps["gpu_idle_pct"] >= IDLE_PCT] if len(steps) else steps
    if short.empty:
        return []
    worst = short.loc[short["gpu_idle_pct"].idxmax()]
    longer = steps[(steps["size"] == worst["size"]) & (steps["context_length"] > worst["context_length"])]
    better = longer[longer["gpu_idle_pct"] < worst["gpu_idle_pct"]]
    if better.empty:
        return []
    best = better.loc[better["gpu_idle_pct"].idxmin()]
    why = say(
        "With {size} at context {short} it idles {idle} of the time, at {long} {less}: put more tokens into a step.",
        size=worst["size"],
        short=int(worst["context_length"]),
        idle=percent(worst["gpu_idle_pct"] / 100),
        long=int(best["context_length"]),
        less=percent(best["gpu_idle_pct"] / 100),
    )
    return [Action(1, Markdown("**Fill the GPU first.**"), why, "idle")]


def _advise(table: pd.DataFrame, rank: int, what: str, topic: str, more: str = "") -> list[Action]:
    """Advise what clearly gains for some model; name where it gains most, and where least."""
    clear = table[table["is_clear"]]
    if clear.empty:
        return []
    best, least = table.loc[clear["ratio"].idxmax()], table.loc[table["ratio"].idxmin()]
    why = say(
        "A step of {size} at context {length} takes {other} instead of {base}, {gain}{least}.{more}",
        size=best["size"],
        length=int(best["context_length"]),
        base=ms(best["base_ms"]),
        other=ms(best["other_ms"]),
        gain=ratio(best["ratio"]),
        least="" if least.name == best.name else f"; for {_at(least)} it is {ratio(least['ratio'])}",
        more=more,
    )
    return [Action(rank, Markdown(f"**{what}.**"), why, topic)]


def _at(row: pd.Series) -> str:
    return f"{row['size']} at context {int(row['context_length'])}"


def _payback(rows: pd.DataFrame, precision: str) -> Markdown:
    times = compile_times(rows)
    times = times[(times["precision"] == precision) & times["payback_steps"].notna()]
    if times.empty:
        return Markdown()
    best = times.loc[times["ratio"].idxmax()]
    return say(
        " Compiling {size} takes {compile}, paid back after {steps} steps.",
        size=best["size"],
        compile=ms(best["compile_ms"]),
        steps=count(best["payback_steps"]),
    )
