"""What the ddp stage answers to the assignment's problems."""

from collections.abc import Sequence

import pandas as pd

from pipeline.formulas.buckets import best_bucket_bytes
from pipeline.report import side_by_side
from pipeline.report.page_parts import Problem, say
from pipeline.report.section import count, counted, data_size, number, percent, ratio
from pipeline.report.side_by_side import agree, is_as_timed, once_each, step_words
from pipeline.report.tables import significant
from pipeline.stages.ddp.report.facts import NO_COMMUNICATION, Run, all_reduce_cost


def problems(measured: Sequence[Run], allreduce: pd.DataFrame) -> list[Problem]:
    """Answer each problem that the rows bear on; allreduce: the rows of that stage, for the overhead model."""
    answers = {
        "naive_ddp": _weights,
        "naive_ddp_benchmarking": _naive,
        "minimal_ddp_flat_benchmarking": _flat,
        "ddp_overlap_individual_parameters_benchmarking": _overlap,
        "ddp_bucketed_benchmarking (a)": _buckets,
    }
    predicted = once_each((run.name, _prediction(run, allreduce)) for run in measured)
    words = "The overhead is n·o + s / (n·w), least with buckets of √(s·w·o). {predicted}"
    model = [Problem("ddp_bucketed_benchmarking (b)", say(words, predicted=predicted))] if predicted else []
    return [*side_by_side.problems(measured, answers), *model]


def _weights(run: Run) -> str:
    averaging = run.steps.drop(index=NO_COMMUNICATION, errors="ignore")
    differences = averaging["variant_difference"].dropna()
    if len(differences) < 2:
        return ""
    between_ranks, tolerance = averaging["rank_difference"].max(), averaging["weight_tolerance"].iloc[0]
    without = run.steps["variant_difference"].get(NO_COMMUNICATION)
    apart = f"; without communication by {without:.2g}" if pd.notna(without) else ""
    return agree(
        f"{len(differences)} variants",
        f"{between_ranks:.2g} between ranks and by {differences.max():.2g} between variants{apart}",
        bool(between_ranks == 0 and differences.max() <= tolerance),
        tolerance,
    )


def _naive(run: Run) -> str:
    if "naive" not in run.left.index:
        return ""
    step, left = run.steps.loc["naive"], run.left.loc["naive"]
    share = percent(left["median_ms"] / step["median_ms"])
    return (
        f"a step takes {step_words(step)}, {step_words(left)} of it ({share}) from the end of backward until all "
        "gradients are averaged."
    )


def _flat(run: Run) -> str:
    return _against_naive(run, "flat", "one all-reduce of all gradients after backward")


def _overlap(run: Run) -> str:
    text = _against_naive(run, "overlap", "an all-reduce a parameter during backward")
    if not text or "overlap" not in run.captures.index:
        return text
    beside = "beside computation" if run.on_gpus else "beside computation, for the same cores"
    captured = run.captures.loc["overlap"]
    if run.on_gpus and not is_as_timed(captured["span_ms"], run.steps.loc["overlap", "median_ms"]):
        return text
    share = percent(captured["hidden_pct"] / 100)
    return f"{text} In a captured step {share} of its communication runs {beside}."


def _against_naive(run: Run, variant: str, words: str) -> str:
    if not {variant, "naive"} <= set(run.steps.index):
        return ""
    step, naive = run.steps.loc[variant], run.steps.loc["naive"]
    return (
        f"a step takes {step_words(step)} with {words}, {step_words(naive)} with naive DDP "
        f"({ratio(naive['median_ms'] / step['median_ms'])}); when backward is done, "
        f"{step_words(run.left.loc[variant])} and {step_words(run.left.loc['naive'])} of communication are left."
    )


def _buckets(run: Run) -> str:
    bucketed = run.steps[run.steps["impl"] == "bucketed"]
    if bucketed.empty:
        return ""
    calls = bucketed["all_reduces"].map(lambda number: counted(number, "all-reduce"))
    # Sizes that give the same number of buckets are the same thing.
    if calls.nunique() == 1:
        return f"every size gives the same {calls.iloc[0]}: nothing to compare."
    least, most = bucketed["median_ms"].idxmin(), bucketed["median_ms"].idxmax()
    best, worst = (f"{name} ({step_words(bucketed.loc[name])}, {calls[name]})" for name in (least, most))
    alike = " Both make the same buckets: that difference is noise." if calls[least] == calls[most] else ""
    return f"{best} takes the least time, {worst} the most.{alike}"


def _prediction(run: Run, allreduce: pd.DataFrame) -> str:
    cost, gradient_bytes = all_reduce_cost(run, allreduce), float(run.steps["gradient_bytes"].iloc[0])
    if cost is None:
        return ""
    size = "a call costs nothing, so that smaller is always better"
    if cost.latency_s:
        best_bytes = best_bucket_bytes(gradient_bytes, cost)
        size = f"{significant(min(best_bytes, gradient_bytes) / 2**20)} MB"
        size += ", all of them in one bucket" if best_bytes >= gradient_bytes else ""
    best = run.fastest(["bucketed"])
    measured = "" if best is None else f"; of those measured {count(best['bucket_size_mb'])} MB take the least time"
    return (
        f"s = {data_size(gradient_bytes)}, o = {significant(cost.latency_s * 1e6)} µs, w = "
        f"{number(cost.bytes_per_s / 1e9)} GB/s (fitted to bursts of all-reduces): {size}{measured}."
    )
