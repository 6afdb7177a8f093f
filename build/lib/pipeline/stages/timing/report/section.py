"""The timing section: how fast each model size trains, what holds it back, and what to do about it."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from pipeline.report.outcomes import WORTH_IT, not_measured, nothing_measured
from pipeline.report.page_parts import MOST_TABLE_ROWS, Figure, Section, Table
from pipeline.report.section import count, number, percent, ratio, span
from pipeline.report.table_rows import known
from pipeline.report.tables import with_outcomes
from pipeline.stages.timing.report import figures, headline
from pipeline.stages.timing.report.actions import actions
from pipeline.stages.timing.report.problems import problems
from pipeline.stages.timing.report.steps import (
    every_batch,
    first_screen_steps,
    of_mode,
    reached_tflops_per_s,
    warm,
)
from pipeline.stages.timing.report.tuned import tuned_steps

ACHIEVED = "Achieved TFLOP/s against the work of one training step"
TITLE, EXERCISE = "How fast does each model train?", "benchmarking_script, torch_compile"
METHOD = (
    "Host clock with a synchronize on both sides, medians: of each phase, then of whole steps, which wait only once."
)
GPU_METHOD = " The GPU is busy while a kernel or copy runs, in steps profiled after the timed ones."
PHASES = {"forward": "forward", "backward": "backward", "optimizer": "optimizer", "train_step": "step"}


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame] | None = None) -> Section:
    """Return the section of the timing stage, from all its rows; beside: those of the stages ceilings and levers."""
    eager = of_mode(warm(rows), "eager")
    if eager.empty:
        return Section(TITLE, EXERCISE, nothing_measured(rows))
    steps, reached = first_screen_steps(rows), reached_tflops_per_s(eager, beside)
    precision, context_length = steps[["precision", "context_length"]].iloc[0]
    tuned = tuned_steps(steps, (beside or {}).get("levers", pd.DataFrame()))
    return Section(
        TITLE,
        EXERCISE,
        _answer(steps),
        parts=[
            *_phases(rows, precision, context_length),
            not_measured(every_batch(rows).assign(what=_what), "what"),
        ],
        method=METHOD if known(steps, "gpu_busy_ms").empty else METHOD + GPU_METHOD,
        actions=actions(rows, precision),
        problems=problems(rows, precision, context_length),
        headline=[
            headline.table(steps, rows, tuned),
            Figure("achieved", ACHIEVED, figures.achieved(rows, reached)),
            headline.finding(eager, reached),
        ],
        models=headline.models(steps, rows, tuned),
    )


def _answer(steps: pd.DataFrame) -> str:
    first, best = steps.iloc[0], steps.loc[steps["model_tflops_per_s"].idxmax()]
    stable = steps[steps["status"] == "ok"] if (steps["status"] == "ok").any() else steps
    mfu = "" if pd.isna(best["mfu_pct"]) else f", {percent(best['mfu_pct'] / 100)} of the peak"
    return (
        f"In {first['precision']} with batch {first['batch_size']} and context {first['context_length']}: "
        f"{span(stable.set_index('size')['tokens_per_s'], count)} tokens/s. {best['size']} has the highest rate, "
        f"{number(best['model_tflops_per_s'])} TFLOP/s{mfu}."
    )


def _phases(rows: pd.DataFrame, precision: str, context_length: int) -> list[Table | str]:
    """Make a table of the phases' medians, fp32 and the main precision, one row per model; say if they disagree."""
    every = pd.concat([of_mode(warm(rows), "eager", phase) for phase in PHASES])
    every = every[(every["context_length"] == context_length) & every["precision"].isin(["fp32", precision])]
    lines = ["precision", "size"]
    order = every.drop_duplicates(lines).set_index(lines).index
    medians, texts = (
        every.assign(cell=cells).pivot(index=lines, columns="phase", values="cell").reindex(columns=PHASES).loc[order]
        for cells in (every["median_ms"], with_outcomes(every["median_ms"].map(number), every.assign(reason=None)))
    )
    shown = texts.fillna("–").rename(columns=PHASES).rename_axis(columns=None).reset_index().head(MOST_TABLE_ROWS)
    return [Table(f"Median times at context {context_length}, in ms:", shown), _disagreement(medians)]


def _what(rows: pd.DataFrame) -> pd.Series:
    """Name the cell of each row as far as memory goes."""
    numbers = " at context " + rows["context_length"].astype(str) + " and batch " + rows["batch_size"].astype(str)
    return rows["size"] + " in " + rows["precision"] + numbers


def _disagreement(medians: pd.DataFrame) -> str:
    """Say which whole step is furthest from the sum of its phases; nothing where none is far from it."""
    apart = (medians["train_step"] / medians.drop(columns="train_step").sum(axis=1, skipna=False)).dropna()
    if apart.empty:
        return ""
    precision, size = np.log(apart).abs().idxmax()
    most = apart[precision, size]
    if 1 / WORTH_IT < most < WORTH_IT:
        return ""
    return (
        f"A step of {size} in {precision} takes {ratio(most)} the sum of its phases, which ran just before it: its "
        "times are known no better than that."
    )
