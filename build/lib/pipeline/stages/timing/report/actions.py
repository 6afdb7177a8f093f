"""What to do on this machine, by the times of training steps."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.outcomes import IDLE_PCT, WORTH_IT
from pipeline.report.page_parts import Action, say
from pipeline.report.section import count, listing, ms, number, percent, ratio
from pipeline.stages.timing.report.steps import (
    bases,
    compile_times,
    compiled_gains,
    every_batch,
    of_mode,
    precision_gains,
    usual_batch,
)


def actions(rows: pd.DataFrame, precision: str) -> list[Action]:
    """Return what to do on this machine, each only where the rows bear it out."""
    return [
        *_fill_the_gpu(rows, precision),
        *_train_in(rows, precision),
        *_compile(rows, precision),
    ]


def _fill_the_gpu(rows: pd.DataFrame, precision: str) -> list[Action]:
    """Advise more work a step where the GPU idles with little of it, or where a larger batch trains clearly faster."""
    steps = of_mode(every_batch(rows), "eager")
    steps = steps[(steps["precision"] == precision) & (steps["status"] == "ok")]
    idle, faster = _idle_with_little_work(steps), _faster_with_a_larger_batch(steps)
    what = Markdown("**Fill the GPU: more tokens a step.**" if idle else "**Train with a larger batch.**")
    return [Action(1, what, f"{idle} {faster}".strip(), "idle")] if idle or faster else []


def _idle_with_little_work(steps: pd.DataFrame) -> str:
    """Say where the GPU idles most, and how little it does in the same model with more tokens a step; else nothing."""
    idle = steps[steps["gpu_idle_pct"] >= IDLE_PCT]  # NaN where it is not known
    for _, step in idle.sort_values("gpu_idle_pct", ascending=False, kind="stable").iterrows():
        fuller = steps[(steps["size"] == step["size"]) & (_tokens(steps) > _tokens(step))]
        better = fuller[fuller["gpu_idle_pct"] < step["gpu_idle_pct"]]
        if len(better):
            best = better.loc[better["gpu_idle_pct"].idxmin()]
            return _idles(step, best)
    return ""


def _idles(step: pd.Series, fuller: pd.Series) -> str:
    """Say how much the GPU idles in a step, and how little in one of the same model with more tokens."""
    batch = f" and batch {int(fuller['batch_size'])}" if fuller["batch_size"] != step["batch_size"] else ""
    return (
        f"The GPU idles {percent(step['gpu_idle_pct'] / 100)} of a step of {_at(step)} in {step['precision']}, "
        "because the host cannot launch kernels as fast as they run; at context "
        f"{int(fuller['context_length'])}{batch} it idles {percent(fuller['gpu_idle_pct'] / 100)}."
    )


def _faster_with_a_larger_batch(steps: pd.DataFrame) -> str:
    """Say how many more tokens a second a larger batch trains than the usual one, where it gains most; else nothing."""
    rates = steps[["size", "context_length", "batch_size", "tokens_per_s"]]
    both = usual_batch(rates).merge(rates, on=["size", "context_length"], suffixes=("", "_more"))
    both = both[both["batch_size_more"] > both["batch_size"]]
    both = both.assign(gain=both["tokens_per_s_more"] / both["tokens_per_s"])
    if both.empty or both["gain"].max() < WORTH_IT:
        return ""
    best = both.loc[both["gain"].idxmax()]
    return (
        f"At context {int(best['context_length'])} {best['size']} trains {count(best['tokens_per_s_more'])} tokens/s "
        f"with batch {int(best['batch_size_more'])}, {count(best['tokens_per_s'])} with batch "
        f"{int(best['batch_size'])} ({ratio(best['gain'])})."
    )


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
    least = _least(table, best, next(iter(tables)))
    others = listing(_beside(best, base, gained) for base, gained in tables.items() if _same(best, gained).any())
    why = f"A step of {_at(best)} takes {ms(best['other_ms'])}, {others}{least}.{_peaks(tables)}"
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


def _compile(rows: pd.DataFrame, precision: str) -> list[Action]:
    """Advise compiling where it clearly gains over the eager step; name where it gains most, and where least."""
    table = compiled_gains(rows)
    table = table[table["precision"] == precision]
    clear = table[table["is_clear"]]
    if clear.empty:
        return []
    best = table.loc[clear["ratio"].idxmax()]
    idle_pct = best["base_idle_pct"]
    idle = f", of which the GPU idles {percent(idle_pct / 100)}," if idle_pct >= IDLE_PCT else ""
    why = (
        f"A step of {_at(best)} in {precision}{idle} takes {ms(best['other_ms'])} instead of {ms(best['base_ms'])} "
        f"({ratio(best['ratio'])}){_least(table, best)}.{_payback(rows, precision)}"
    )
    return [Action(2, Markdown("**Use `torch.compile`.**"), why, "compile")]


def _least(table: pd.DataFrame, best: pd.Series, base: str = "") -> str:
    """Say which stable step gains least, of those that the GPU limits: the host's speed is no precision's or mode's.

    base: the precision over which; empty where modes are compared.
    """
    by_host = table[["base_idle_pct", "other_idle_pct"]].max(axis=1) >= IDLE_PCT
    told = table[table["is_stable"] & ~by_host]
    if told.empty or (row := told.loc[told["ratio"].idxmin()]).name == best.name:
        return ""
    over, than = (f" over {base}", f" than in {base}") if base else ("", "")
    what = f"gains least{over}" if row["ratio"] >= 1 else f"gets slower{than}"
    return f"; {'where the GPU is the limit, ' if by_host.any() else ''}{_at(row)} {what} ({ratio(row['ratio'])})"


def _at(row: pd.Series) -> str:
    return f"{row['size']} at context {int(row['context_length'])}"


def _payback(rows: pd.DataFrame, precision: str) -> str:
    times = compile_times(rows)
    times = times[(times["precision"] == precision) & times["payback_steps"].notna()]
    if times.empty:
        return ""
    best = times.loc[times["ratio"].idxmax()]
    steps = count(best["payback_steps"])
    return f" Compiling {best['size']} takes {ms(best['compile_ms'])}, paid back after {steps} steps."
