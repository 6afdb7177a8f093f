"""The timing section: how fast each model size trains, what holds it back, and what to do about it."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report.outcomes import not_measured, nothing_measured
from pipeline.report.page_parts import MOST_TABLE_ROWS, Figure, Section, Table
from pipeline.report.section import number, percent, ratio, span
from pipeline.report.table_rows import known
from pipeline.stages.timing.report import figures, headline
from pipeline.stages.timing.report.actions import actions
from pipeline.stages.timing.report.problems import problems
from pipeline.stages.timing.report.steps import (
    KINDS,
    at,
    gains,
    largest_context,
    main_precision,
    of_kind,
    reached_tflops_per_s,
    warm,
)

TITLE, EXERCISE = "How fast does each model train?", "benchmarking_script, torch_compile"
METHOD = "Host clock with a synchronize on both sides; phases one by one, then whole steps; medians."
GPU_METHOD = " The GPU is busy while a kernel or copy runs, in steps profiled after the timed ones."
PHASES = {"forward": "forward", "backward": "backward", "optimizer": "optimizer", "train_step": "step"}
KIND_WORDS = {
    "eager": "eager, foreach AdamW (ms)",
    "fused": "fused AdamW",
    "compiled": "compiled",
    "graph": "CUDA graph",
    "graph_fused": "graph, fused",
}


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame] | None = None) -> Section:
    """Return the section of the timing stage, from all its rows; beside: those of the stage ceilings."""
    eager = of_kind(warm(rows), "eager")
    if eager.empty:
        return Section(TITLE, EXERCISE, nothing_measured(rows))
    precision = main_precision(rows)
    context_length = largest_context(rows, precision)
    steps, reached = at(eager, precision, context_length), reached_tflops_per_s(beside)
    return Section(
        TITLE,
        EXERCISE,
        _answer(steps),
        parts=[
            _phases_table(rows, precision, context_length),
            *_kinds_table(rows, precision),
            not_measured(warm(rows), "precision"),
        ],
        method=METHOD if known(steps, "gpu_busy_ms").empty else METHOD + GPU_METHOD,
        actions=actions(rows, precision),
        problems=problems(rows, precision, context_length),
        headline=[
            headline.table(steps, rows),
            Figure("achieved", headline.figure_title(eager, reached), figures.achieved(rows, reached)),
        ],
        models=headline.models(steps, rows),
    )


def _answer(steps: pd.DataFrame) -> str:
    first, best = steps.iloc[0], steps.loc[steps["model_tflops_per_s"].idxmax()]
    mfu = "" if pd.isna(best["mfu_pct"]) else f", {percent(best['mfu_pct'] / 100)} of the peak"
    return (
        f"In {first['precision']} with batch {first['setting_batch_size']} and context {first['context_length']}: "
        f"{span(steps.set_index('size')['tokens_per_s'], 'count')} tokens/s. {best['size']} has the highest rate, "
        f"{number(best['model_tflops_per_s'])} TFLOP/s{mfu}."
    )


def _phases_table(rows: pd.DataFrame, precision: str, context_length: int) -> Table:
    """Make a table of the phases' medians: the narrowest precision and fp32, a row a model."""
    every = pd.concat([of_kind(warm(rows), "eager", phase) for phase in PHASES])
    every = every[(every["context_length"] == context_length) & every["precision"].isin(["fp32", precision])]
    lines = ["precision", "size"]
    wide = every.pivot(index=lines, columns="phase", values="median_ms").reindex(columns=PHASES)
    wide = wide.loc[every.drop_duplicates(lines).set_index(lines).index].rename(columns=PHASES)
    cells = wide.map(headline.written).rename_axis(columns=None).reset_index().head(MOST_TABLE_ROWS)
    return Table(f"Median times at context {context_length}, in ms:", cells)


def _kinds_table(rows: pd.DataFrame, precision: str) -> list[Table]:
    """Make a table of what other ways to run the same step gain, at the context where most of them were measured."""
    kinds = {kind: gains(rows, "eager", kind) for kind in KINDS if kind != "eager"}
    kinds = {kind: found[found["precision"] == precision] for kind, found in kinds.items()}
    contexts = pd.concat(kinds.values())["context_length"]
    if contexts.empty:
        return []
    context_length = int(contexts.mode().iloc[0])
    eager = at(of_kind(warm(rows), "eager"), precision, context_length)
    columns = {"model": eager["size"], KIND_WORDS["eager"]: eager["median_ms"].map(number)}
    for kind, found in kinds.items():
        factors = found[found["context_length"] == context_length].set_index("size")["ratio"]
        if len(factors):
            columns[KIND_WORDS[kind]] = eager["size"].map(factors).map(lambda gain: headline.written(gain, ratio))
    title = (
        f"Other ways to run the same step, and how many times as fast as eager they are ({precision}, context "
        f"{context_length}):"
    )
    return [Table(title, pd.DataFrame(columns).reset_index(drop=True).head(MOST_TABLE_ROWS))]
