"""The timing section: how fast each model size trains, what holds it back, and what to do about it."""

from collections.abc import Callable, Iterable, Mapping

import pandas as pd

from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES
from pipeline.report.markup import Markdown
from pipeline.report.outcomes import not_measured, nothing_measured
from pipeline.report.page_parts import Figure, Section, Table, say
from pipeline.report.section import count, listing, number, percent, ratio, span
from pipeline.report.table_rows import known
from pipeline.report.tables import with_outcomes
from pipeline.stages.timing.report import figures
from pipeline.stages.timing.report.actions import actions
from pipeline.stages.timing.report.models import models
from pipeline.stages.timing.report.problems import problems
from pipeline.stages.timing.report.steps import (
    IDLE_PCT,
    KINDS,
    at,
    gains,
    largest_context,
    main_precision,
    of_kind,
    precision_gains,
    reached_tflops_per_s,
    step_flops,
    warm,
)

TITLE, EXERCISE = "How fast does each model train?", "benchmarking_script, torch_compile"
METHOD = Markdown("Host clock with a synchronize on both sides; phases one by one, then whole steps; medians.")
GPU_METHOD = Markdown(" The GPU is busy while a kernel or copy runs, in steps profiled after the timed ones.")
# Named after a model with two feed-forward matrices a layer, where SwiGLU has three (pipeline.formulas.sizes).
NAMED_WITHOUT_SWIGLU = ("2.7B", "10B")
KIND_WORDS = {
    "eager": "eager, foreach AdamW (ms)",
    "fused": "fused AdamW",
    "compiled": "compiled",
    "graph": "CUDA graph",
    "graph_fused": "graph, fused",
}


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame] | None = None) -> Section:
    """Return the section of the timing stage, from all its rows; beside: those of the stage ceilings."""
    if of_kind(warm(rows), "eager").empty:
        return Section(TITLE, EXERCISE, nothing_measured(rows))
    precision = main_precision(rows)
    context_length = largest_context(rows, precision)
    steps = at(of_kind(warm(rows), "eager"), precision, context_length)
    reached = reached_tflops_per_s(beside)
    return Section(
        TITLE,
        EXERCISE,
        _answer(steps, rows, precision, context_length),
        parts=[
            *_idle_figure(steps),
            _phases_table(rows, context_length),
            *_kinds_table(rows, precision),
            not_measured(warm(rows), "precision"),
        ],
        method=METHOD if known(steps, "gpu_busy_ms").empty else METHOD + GPU_METHOD,
        actions=actions(rows, precision),
        problems=problems(rows, precision, context_length),
        headline=[
            _headline(steps, rows, context_length),
            Figure("achieved", _achieved_title(rows, reached), figures.achieved(rows, reached)),
        ],
        models=models(rows, precision, context_length),
    )


def _answer(steps: pd.DataFrame, rows: pd.DataFrame, precision: str, context_length: int) -> Markdown:
    best = steps.loc[steps["model_tflops_per_s"].idxmax()]
    return say(
        "In {precision} with batch {batch} and context {context_length}: {tokens} tokens/s. {size} has the highest"
        " rate, {tflops} TFLOP/s{mfu}.",
        precision=precision,
        batch=int(rows["setting_batch_size"].iloc[0]),
        context_length=context_length,
        tokens=span(steps.set_index("size")["tokens_per_s"], "count"),
        size=best["size"],
        tflops=number(best["model_tflops_per_s"]),
        mfu="" if pd.isna(best["mfu_pct"]) else f", {percent(best['mfu_pct'] / 100)} of the peak",
    )


def _headline(steps: pd.DataFrame, rows: pd.DataFrame, context_length: int) -> Table:
    """Make the first screen's table: a row a model, at the largest context."""
    precision = steps["precision"].iloc[0]
    over_fp32 = precision_gains(rows, precision)
    over_fp32 = over_fp32[over_fp32["context_length"] == context_length].set_index("size")["ratio"]
    columns = {
        "model": [f"{row['size']} ({_shape(row)})" for _, row in steps.iterrows()],
        "tokens/s": with_outcomes(steps["tokens_per_s"].map(count), steps),
        "TFLOP/s (MFU)": [
            number(rate) if pd.isna(mfu) else f"{number(rate)} ({percent(mfu / 100)})"
            for rate, mfu in zip(steps["model_tflops_per_s"], steps["mfu_pct"], strict=True)
        ],
        "× fp32": steps["size"].map(over_fp32) if precision != "fp32" else None,
        "peak GB": steps["peak_bytes"] / 1e9 if "peak_bytes" in steps else None,
        "GPU idle": steps.get("gpu_idle_pct"),
        "limited by": steps["limited_by"].replace("gpu", "GPU") if "limited_by" in steps else None,
        "tokens/J": steps.get("tokens_per_j"),
    }
    forms = dict.fromkeys(("× fp32", "peak GB", "tokens/J"), number)
    forms["GPU idle"] = lambda value: percent(value / 100)
    known = {name: pd.Series(list(column)) for name, column in columns.items() if column is not None}
    shown = {name: column for name, column in known.items() if column.notna().any()}
    cells = pd.DataFrame({name: _written(column, forms.get(name, str)) for name, column in shown.items()})
    return Table(_headline_title(steps, rows, shown), cells)


def _headline_title(steps: pd.DataFrame, rows: pd.DataFrame, shown: Iterable[str]) -> Markdown:
    """Say what the first screen's table is of, and what its columns mean that do not say it themselves."""
    first, longest = steps.iloc[0], rows["context_length"].max()
    peak = known(steps, "peak_tflops_per_s", "peak_source")
    legend = {
        "× fp32": "how many times as fast as in fp32",
        "GPU idle": "share of the step in which no kernel runs",
        "limited by": f"host where the GPU idles {IDLE_PCT:g}% or more",
    }
    legend = {name: words for name, words in legend.items() if name in shown}
    if len(peak):
        of = "data sheet's" if peak["peak_source"].iloc[0] == "datasheet" else "measured"
        legend = {"MFU": f"share of the {of} {number(peak['peak_tflops_per_s'].max())} TFLOP/s", **legend}
    return say(
        "Training steps in plain PyTorch (eager, attention by its formula), {precision}, batch {batch}, context"
        " {context} ({longest}).{legend}",
        precision="bf16 autocast" if first["precision"] == "bf16" else first["precision"],
        batch=int(first["setting_batch_size"]),
        context=int(first["context_length"]),
        longest="the longest measured" if first["context_length"] == longest else "the longest that all of these fit",
        legend=Markdown("").join([Markdown(" {}: {}.").format(name, words) for name, words in legend.items()]),
    )


def _shape(row: pd.Series) -> str:
    parameters = parameter_count(SIZES[row["size"]], int(row["setting_vocab_size"]))
    words = f"{number(parameters / 1e9)}B" if parameters >= 1e9 else f"{number(parameters / 1e6)}M"
    swiglu = " with SwiGLU" if row["size"] in NAMED_WITHOUT_SWIGLU else ""
    return f"{words}{swiglu}, {SIZES[row['size']].num_layers} layers"


def _written(column: pd.Series, form: Callable[..., str]) -> pd.Series:
    return column.map(lambda value: "–" if pd.isna(value) else form(value))


def _achieved_title(rows: pd.DataFrame, reached: Mapping[str, float]) -> Markdown:
    """Say which rate is the highest, what a matrix product alone reaches, and where the GPU waits for the host."""
    steps = of_kind(warm(rows), "eager")
    most = steps.loc[steps["model_tflops_per_s"].idxmax()]
    alone = reached.get(most["precision"])
    idle = known(steps, "gpu_idle_pct")
    idle = idle[idle["gpu_idle_pct"] >= IDLE_PCT] if len(idle) else idle
    work = max((step_flops(row) for _, row in idle.iterrows()), default=0) / figures.TERA
    return say(
        "Achieved TFLOP/s against the work of one training step: at most {most}, by {size} in {precision}{alone}{host}",
        most=number(most["model_tflops_per_s"]),
        size=most["size"],
        precision=most["precision"],
        alone=f", where a matrix product alone reaches {number(alone)}" if alone else "",
        host=f"; up to {number(work)} TFLOP a step the GPU may wait for the host" if work else "",
    )


def _idle_figure(steps: pd.DataFrame) -> list[Markdown | Figure]:
    if "gpu_busy_ms" not in steps or steps["gpu_busy_ms"].isna().any():
        return []
    limited = list(steps.loc[steps["limited_by"] == "host", "size"])
    words = f"The host limits {listing(limited)}" if limited else "The host limits no model"
    title = say("{words}: a training step's time, GPU busy and idle", words=words)
    return [Figure("wall_and_idle", title, figures.wall_and_idle(steps))]


def _phases_table(rows: pd.DataFrame, context_length: int) -> Table:
    """Make a table of the phases' medians: the narrowest precision and fp32, a row a model."""
    shown = ["fp32", main_precision(rows)]
    phases = [of_kind(warm(rows), "eager", phase) for phase in ("forward", "backward", "optimizer", "train_step")]
    every = pd.concat(phases)
    every = every[(every["context_length"] == context_length) & every["precision"].isin(shown)]
    wide = every.pivot(index=["precision", "size"], columns="phase", values="median_ms")
    order = every.drop_duplicates(["precision", "size"]).set_index(["precision", "size"]).index
    wide = wide.loc[order, ["forward", "backward", "optimizer", "train_step"]].rename(columns={"train_step": "step"})
    cells = wide.map(lambda value: "–" if pd.isna(value) else number(value)).reset_index().head(12)
    return Table(say("Median times at context {context_length}, in ms:", context_length=context_length), cells)


def _kinds_table(rows: pd.DataFrame, precision: str) -> list[Table]:
    """Make a table of what other ways to run the same step gain, at the context where most of them were measured."""
    kinds = {kind: gains(rows, "eager", kind) for kind in KINDS if kind != "eager"}
    kinds = {kind: table[table["precision"] == precision] for kind, table in kinds.items()}
    every = pd.concat(kinds.values())
    if every.empty:
        return []
    context_length = int(every["context_length"].mode().iloc[0])
    eager = at(of_kind(warm(rows), "eager"), precision, context_length)
    columns = {"model": eager["size"], KIND_WORDS["eager"]: eager["median_ms"].map(number)}
    for kind, table in kinds.items():
        factors = table[table["context_length"] == context_length].set_index("size")["ratio"]
        if len(factors):
            columns[KIND_WORDS[kind]] = _written(eager["size"].map(factors), ratio)
    title = say(
        "Other ways to run the same step, and how many times as fast as eager they are ({precision}, context"
        " {context_length}):",
        precision=precision,
        context_length=context_length,
    )
    return [Table(title, pd.DataFrame(columns).reset_index(drop=True).head(12))]
