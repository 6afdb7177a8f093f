"""What to do on this machine, by the times of training steps."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.outcomes import IDLE_PCT, WORTH_IT
from pipeline.report.page_parts import Action, say
from pipeline.report.section import count, listing, ms, number, percent, ratio
from pipeline.report.table_rows import known
from pipeline.stages.timing.report.steps import (
    bases,
    compile_times,
    every_batch,
    gains,
    of_kind,
    precision_gains,
    usual_batch,
)


def actions(rows: pd.DataFrame, precision: str) -> list[Action]:
    """Return what to do on this machine, each only where the rows bear it out."""
    kinds = {kind: _of(rows, precision, kind) for kind in ("compiled", "graph", "fused")}
    return [
        *_fill_the_gpu(rows, precision),
        *_train_in(rows, precision),
        *_advise(kinds["compiled"], 2, "Use `torch.compile`", "compile", _payback(rows, precision)),
        *_advise(kinds["graph"], 2, "Capture the step as a CUDA graph", "graph"),
        *_advise(kinds["fused"], 2, "Use fused AdamW (`fused=True`)", "optimizer"),
    ]


def _of(rows: pd.DataFrame, precision: str, kind: str) -> pd.DataFrame:
    table = gains(rows, "eager", kind)
    return table[table["precision"] == precision]


def _fill_the_gpu(rows: pd.DataFrame, precision: str) -> list[Action]:
    """Advise more work a step where the GPU idles with little of it, or where a larger batch trains clearly faster."""
    steps = of_kind(every_batch(rows), "eager")
    steps = steps[steps["precision"] == precision]
    idle, faster = _idle_with_little_work(known(steps, "gpu_idle_pct")), _faster_with_a_larger_batch(steps)
    what = Markdown("**Fill the GPU: more tokens a step.**" if idle else "**Train with a larger batch.**")
    return [Action(1, what, Markdown(" ").join([*idle, *faster]), "idle")] if idle or faster else []


def _idle_with_little_work(steps: pd.DataFrame) -> list[Markdown]:
    """Say where the GPU idles most, and how little it does in the same model with more tokens a step."""
    short = steps[steps["gpu_idle_pct"] >= IDLE_PCT] if len(steps) else steps
    if short.empty:
        return []
    worst = short.loc[short["gpu_idle_pct"].idxmax()]
    fuller = steps[(steps["size"] == worst["size"]) & (_tokens(steps) > _tokens(worst))]
    better = fuller[fuller["gpu_idle_pct"] < worst["gpu_idle_pct"]]
    if better.empty:
        return []
    best = better.loc[better["gpu_idle_pct"].idxmin()]
    why = say(
        "The GPU idles {idle} of a step of {size} at {little}, because the host cannot launch kernels as fast as they"
        " run; at {much} it idles {less}.",
        size=worst["size"],
        little=f"context {int(worst['context_length'])}",
        idle=percent(worst["gpu_idle_pct"] / 100),
        much=f"context {int(best['context_length'])}"
        + (f" and batch {int(best['batch_size'])}" if best["batch_size"] != worst["batch_size"] else ""),
        less=percent(best["gpu_idle_pct"] / 100),
    )
    return [why]


def _faster_with_a_larger_batch(steps: pd.DataFrame) -> list[Markdown]:
    """Say how many more tokens a second a larger batch trains than the usual one, where it gains most."""
    stable = steps[steps["status"] == "ok"]
    keys = ["size", "context_length"]
    both = usual_batch(stable).merge(stable, on=keys, suffixes=("", "_more"))
    both = both[both["batch_size_more"] > both["batch_size"]] if len(both) else both
    both = both.assign(gain=both["tokens_per_s_more"] / both["tokens_per_s"])
    if both.empty or both["gain"].max() < WORTH_IT:
        return []
    best = both.loc[both["gain"].idxmax()]
    why = say(
        "At context {context} {size} trains {more} tokens/s with batch {large}, {usual} with batch {small} ({gain}).",
        size=best["size"],
        context=int(best["context_length"]),
        more=count(best["tokens_per_s_more"]),
        large=int(best["batch_size_more"]),
        usual=count(best["tokens_per_s"]),
        small=int(best["batch_size"]),
        gain=ratio(best["gain"]),
    )
    return [why]


def _tokens(step: pd.Series | pd.DataFrame) -> Any:
    return step["batch_size"] * step["context_length"]


def _train_in(rows: pd.DataFrame, precision: str) -> list[Action]:
    """Advise the precision where it clearly gains over fp32, with TF32 where that was timed; with the peaks."""
    tables = {base: precision_gains(rows, precision, base) for base in bases(precision)}
    tables = {base: table for base, table in tables.items() if table["is_stable"].any()}
    table = next(iter(tables.values()), pd.DataFrame())
    if table.empty or not table["is_clear"].any():
        return []
    best = table.loc[table.loc[table["is_clear"], "ratio"].idxmax()]
    least = _least(table, best, f" than in {next(iter(tables))}")
    why = say(
        "A step of {where} takes {time}, {others}{least}.{peaks}",
        where=_at(best),
        time=ms(best["other_ms"]),
        others=listing(_beside(best, base, gained) for base, gained in tables.items() if _same(best, gained).any()),
        least=least,
        peaks=_peaks(tables),
    )
    return [Action(1, say("**Train in {precision}.**", precision=precision), why, "precision")]


def _same(step: pd.Series, table: pd.DataFrame) -> pd.Series:
    """Tell which rows are of the same step and stable."""
    keys = ["size", "context_length"]
    return (table[keys] == step[keys]).all(axis=1) & table["is_stable"]


def _beside(step: pd.Series, base: str, table: pd.DataFrame) -> str:
    row = table[_same(step, table)].iloc[0]
    return f"in {base} {ms(row['base_ms'])} ({ratio(row['ratio'])})"


def _peaks(tables: Mapping[str, pd.DataFrame]) -> str:
    """Say what the peaks of the precisions are, in the order in which their times were told; nothing if unknown."""
    own = next(iter(tables.values()))["other_tflops_per_s"].max()
    peaks = [own, *(table["base_tflops_per_s"].max() for table in tables.values())]
    return "" if pd.isna(peaks).any() else f" The peaks are {listing(map(number, peaks))} TFLOP/s."


def _advise(table: pd.DataFrame, rank: int, what: str, topic: str, more: str = "") -> list[Action]:
    """Advise what clearly gains for some model; name where it gains most, and where least."""
    clear = table[table["is_clear"]]
    if clear.empty:
        return []
    best = table.loc[clear["ratio"].idxmax()]
    why = say(
        "A step of {where} in {precision}{idle} takes {other} instead of {base} ({gain}){least}.{more}",
        where=_at(best),
        precision=best["precision"],
        idle=_idle(best["base_idle_pct"], ", of which the GPU idles {},"),
        base=ms(best["base_ms"]),
        other=ms(best["other_ms"]),
        gain=ratio(best["ratio"]),
        least=_least(table, best),
        more=more,
    )
    return [Action(rank, Markdown(f"**{what}.**"), why, topic)]


def _least(table: pd.DataFrame, best: pd.Series, than: str = "") -> str:
    """Say which stable step gains least, of those that the GPU limits: the host's speed is no precision's or mode's."""
    by_host = table[["base_idle_pct", "other_idle_pct"]].max(axis=1) >= IDLE_PCT
    told = table[table["is_stable"] & ~by_host]
    if told.empty or (row := told.loc[told["ratio"].idxmin()]).name == best.name:
        return ""
    what = "gains least" if row["ratio"] >= 1 else f"gets slower{than}"
    return f"; {'where the GPU is the limit, ' if by_host.any() else ''}{_at(row)} {what} ({ratio(row['ratio'])})"


def _idle(idle_pct: float, words: str) -> str:
    """Say how long the GPU idles where the host limits a step; nothing elsewhere."""
    return words.format(percent(idle_pct / 100)) if idle_pct >= IDLE_PCT else ""


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
