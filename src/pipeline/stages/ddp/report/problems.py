"""What the ddp stage answers to the assignment's problems."""

from collections.abc import Callable, Sequence

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.page_parts import Problem, say
from pipeline.report.section import counted, data_size, ms, number, percent
from pipeline.report.side_by_side import once_each
from pipeline.report.table_rows import ok
from pipeline.report.tables import significant
from pipeline.stages.ddp.report.facts import NO_COMMUNICATION, Run, fit


def problems(measured: Sequence[Run], allreduce: pd.DataFrame) -> list[Problem]:
    """Answer each problem that the rows bear on; allreduce: the rows of that stage, for the overhead model."""
    answers: dict[str, Callable[[Run], Markdown]] = {
        "naive_ddp": _weights,
        "naive_ddp_benchmarking": _naive,
        "minimal_ddp_flat_benchmarking": _flat,
        "ddp_overlap_individual_parameters_benchmarking": _overlap,
        "ddp_bucketed_benchmarking (a)": _buckets,
    }
    said = {name: once_each((run.label, answer(run)) for run in measured) for name, answer in answers.items()}
    said["ddp_bucketed_benchmarking (b)"] = _model(measured, allreduce)
    return [Problem(name, text) for name, text in said.items() if text]


def _weights(run: Run) -> Markdown:
    averaging = run.steps.drop(index=NO_COMMUNICATION, errors="ignore")
    differences = averaging["variant_difference"].dropna()
    if len(differences) < 2:
        return Markdown()
    between_ranks, tolerance = averaging["rank_difference"].max(), averaging["weight_tolerance"].iloc[0]
    agree = between_ranks == 0 and differences.max() <= tolerance
    without = run.steps["variant_difference"].get(NO_COMMUNICATION)
    return say(
        "the weights of {n} variants {agree} after the timed steps: they differ by {ranks} between ranks "
        "and by {variants} between variants (rounding may make {tolerance}{without}).",
        n=len(differences),
        agree="agree" if agree else Markdown("**do not agree**"),
        ranks=f"{between_ranks:.2g}",
        variants=f"{differences.max():.2g}",
        tolerance=f"{tolerance:.2g}",
        without=f"; without communication it is {without:.2g}" if pd.notna(without) else "",
    )


def _naive(run: Run) -> Markdown:
    if "naive" not in run.steps.index or pd.isna(run.phases_ms.loc["naive", "communication"]):
        return Markdown()
    step_ms, left_ms = run.steps.loc["naive", "median_ms"], run.phases_ms.loc["naive", "communication"]
    return say(
        "a step takes {step}, of which communication {left} ({share}).",
        step=ms(step_ms),
        left=ms(left_ms),
        share=percent(left_ms / step_ms),
    )


def _flat(run: Run) -> Markdown:
    return _against_naive(run, "flat", "one all-reduce of all gradients after backward")


def _overlap(run: Run) -> Markdown:
    text = _against_naive(run, "overlap", "an all-reduce a parameter during backward")
    if not text or "overlap" not in run.captures.index:
        return text
    beside = "beside computation" if run.on_gpus else "beside computation, for the same cores"
    share = percent(run.captures.loc["overlap", "hidden_pct"] / 100)
    sentence = " In a captured step {share} of its communication runs {beside}."
    return text + say(sentence, share=share, beside=beside)


def _against_naive(run: Run, variant: str, words: str) -> Markdown:
    if not {variant, "naive"} <= set(run.steps.index):
        return Markdown()
    phases, steps_ms = run.phases_ms["communication"], run.steps["median_ms"]
    return say(
        "{words} makes a step of {own}, naive one of {naive} ({ratio}); of these {left} and {naive_left} are left of "
        "communication when backward is done.",
        words=words,
        own=ms(steps_ms[variant]),
        naive=ms(steps_ms["naive"]),
        ratio=f"{significant(steps_ms['naive'] / steps_ms[variant])}×",
        left=ms(phases[variant]),
        naive_left=ms(phases["naive"]),
    )


def _buckets(run: Run) -> Markdown:
    bucketed = ok(run.steps)[run.steps["impl"] == "bucketed"]
    if bucketed.empty:
        return Markdown()
    # Sizes that give the same number of buckets are the same thing.
    if bucketed["all_reduces"].nunique() == 1:
        calls = counted(bucketed["all_reduces"].iloc[0], "all-reduce")
        return say("every size gives the same {calls}: nothing to compare.", calls=calls)
    best, worst = (bucketed.loc[at] for at in (bucketed["median_ms"].idxmin(), bucketed["median_ms"].idxmax()))
    return say(
        "the least time takes {best} ({best_ms}, {calls}), the most {worst} ({worst_ms}, {worst_calls}).",
        best=best.name,
        best_ms=ms(best["median_ms"]),
        calls=counted(best["all_reduces"], "all-reduce"),
        worst=worst.name,
        worst_ms=ms(worst["median_ms"]),
        worst_calls=counted(worst["all_reduces"], "all-reduce"),
    )


def _model(measured: Sequence[Run], allreduce: pd.DataFrame) -> Markdown:
    """Feed the overhead model n·o + s / (n·w) with the measured all-reduces."""
    predictions = once_each((run.name, _prediction(run, allreduce)) for run in measured)
    formula = Markdown("The overhead is n·o + s / (n·w), least with buckets of √(s·w·o). ")
    return formula + predictions if predictions else Markdown()


def _prediction(run: Run, allreduce: pd.DataFrame) -> Markdown:
    fitted = fit(run, allreduce)
    if fitted is None:
        return Markdown()
    best = fitted.best_bucket_mb
    return say(
        "s = {gradients}, o = {o} µs, w = {w} GB/s (fitted to bursts of all-reduces): {best}.",
        gradients=data_size(run.gradient_bytes),
        o=significant(fitted.cost.latency_s * 1e6),
        w=number(fitted.cost.bytes_per_s / 1e9),
        best=f"{significant(best)} MB" if best else "a call costs nothing, so that smaller is always better",
    )
