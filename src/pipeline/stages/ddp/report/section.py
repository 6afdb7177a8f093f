"""The ddp section: which bucket size, what hides behind backward, against PyTorch's DDP and no communication."""

from collections.abc import Mapping, Sequence

import pandas as pd

from pipeline.instruments.sampling.verdict import SAME, UNDECIDED
from pipeline.report.markup import Markdown
from pipeline.report.outcomes import clear_gain, not_measured, nothing_measured
from pipeline.report.page_parts import Action, Figure, Section, Table, say
from pipeline.report.repeats import verdict
from pipeline.report.section import count, listing, ms, percent
from pipeline.report.tables import median_cells, significant
from pipeline.stages.ddp.report.facts import (
    NO_COMMUNICATION,
    READING_ORDER,
    TORCH,
    TORCH_DEFAULT,
    Run,
    runs,
    whole_steps,
)
from pipeline.stages.ddp.report.figures import bucket_sweep, timeline
from pipeline.stages.ddp.report.problems import problems

TITLE = "What does averaging gradients cost a step, and which bucket size is best?"
EXERCISE = "naive_ddp, minimal_ddp_flat, ddp_overlap_individual_parameters, ddp_bucketed"
OURS = ("naive", "flat", "overlap", "bucketed")
MOST_TABLE_RUNS = 2


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Build the section from the rows of all its tables.

    beside: the rows of the stage allreduce, from which the overhead model takes its cost of a call and of a byte.
    """
    whole, measured = whole_steps(rows), runs(rows)
    if not measured:
        return Section(TITLE, EXERCISE, nothing_measured(whole))
    missing = not_measured(whole, "cell_name")
    return Section(
        TITLE,
        EXERCISE,
        _answer(measured),
        parts=[*_figures(measured), _table(measured), missing],
        method=_method(pd.concat([run.steps for run in measured])),
        actions=[*_larger_buckets(measured), *_average_less_often(measured)],
        problems=problems(measured, beside["allreduce"]),
    )


def _answer(measured: Sequence[Run]) -> Markdown:
    lead = next((run for run in measured if not run.host_limited), measured[0])
    others = [run for run in measured if run is not lead]
    setting = say("{size} on {n} ranks, ", size=lead.size, n=lead.world_size)
    return setting + Markdown(" ").join([_verdict(lead), *map(_verdict, others)])


def _verdict(run: Run) -> Markdown:
    """Say how long a step takes with the best of ours and with PyTorch's DDP, and who decides that."""
    best, torch = run.fastest(OURS), run.fastest(TORCH)
    host = (
        f", where the host limits the step (the GPU idles {percent(run.idle_share)} of it)" if run.host_limited else ""
    )
    parts = []
    if best is not None:
        words = "at best {takes} a step with {variant}{cost}"
        parts.append(say(words, takes=_takes(best), variant=best.name, cost=_cost(run, best)))
    if torch is not None:
        default_ms = run.steps["median_ms"].get(TORCH_DEFAULT)
        default = f", {ms(default_ms)} with its default of 25 MB" if default_ms and torch.name != TORCH_DEFAULT else ""
        words = "PyTorch's DDP takes {takes} with buckets of {size} MB{tuned}{default}"
        size = count(torch["bucket_size_mb"])
        tuned = ", without sending buffers and with gradients as views" if torch["impl"] == "torch_tuned" else ""
        parts.append(say(words, takes=_takes(torch), size=size, tuned=tuned, default=default))
    verdict = Markdown("; ").join(parts) if parts else Markdown("nothing that averages was measured")
    return say("{name}{host}: {verdict}.", name=run.name, host=host, verdict=verdict)


def _takes(step: pd.Series) -> str:
    return ms(step["median_ms"]) + (" (unstable)" if step["status"] == "unstable" else "")


def _cost(run: Run, step: pd.Series) -> str:
    """Say how a step stands to one without communication; nothing where that was not measured."""
    if NO_COMMUNICATION not in run.steps.index:
        return ""
    base = run.steps.loc[NO_COMMUNICATION]
    if "unstable" in (base["status"], step["status"]):
        return f" ({ms(base['median_ms'])} without communication)"
    word = verdict(base, step).word
    if word in (SAME, UNDECIDED):
        return f", {word} {'as' if word == SAME else 'from'} without communication ({ms(base['median_ms'])})"
    share = step["median_ms"] / base["median_ms"] - 1
    more = "more" if share > 0 else "less"
    return f", {percent(abs(share))} {more} than without communication ({ms(base['median_ms'])})"


def _figures(measured: Sequence[Run]) -> list[Figure]:
    figures = []
    sweep = bucket_sweep(measured)
    if sweep is not None:
        words = "{name} at least {beyond} ({variant})"
        least = [
            say(words, variant=run.beyond_ms.idxmin(), beyond=ms(run.beyond_ms.min()), name=run.label)
            for run in measured
            if len(run.beyond_ms)
        ]
        title = say("What averaging adds to a step: {least}", least=Markdown(", ").join(least))
        figures.append(Figure("buckets", title, sweep))
    drawn = timeline(measured)
    if drawn is not None:
        figures.append(Figure("timeline", _timeline_title(measured), drawn))
    return figures


def _timeline_title(measured: Sequence[Run]) -> Markdown:
    shares = [
        f"{percent(run.captures.loc['overlap', 'hidden_pct'] / 100)} ({run.name})"
        for run in measured
        if "overlap" in run.captures.index
    ]
    return say(
        "One captured step with all-reduces after backward (naive) and during it (overlap){hidden}",
        hidden=f": {listing(shares)} of overlap's communication runs beside computation" if shares else "",
    )


def _table(measured: Sequence[Run]) -> Table:
    """Write ours and torch's variants, a row each, for at most two cells; the user's own have a table of theirs."""
    shown, lead = measured[:MOST_TABLE_RUNS], measured[0]
    variants = [variant for variant in READING_ORDER if any(variant in run.whole.index for run in shown)]
    columns = {"variant": variants}
    for run in shown:
        columns[f"{run.name}, step (ms)"] = _aligned(median_cells(run.whole), variants)
        columns[f"{run.name}, added (ms)"] = _aligned(run.beyond_ms.map(significant), variants)
    columns["all-reduces"] = _aligned(lead.steps["all_reduces"].map(count), variants)
    if lead.steps["peak_bytes"].notna().any():
        columns["peak (GB)"] = _aligned((lead.steps["peak_bytes"].astype(float) / 1e9).map(significant), variants)
    title = say(
        "Median step [quartiles] and what it takes beyond one without communication; all-reduces and memory are those "
        "of {name}:",
        name=lead.name,
    )
    return Table(title, pd.DataFrame(columns))


def _aligned(cells: pd.Series, variants: list[str]) -> list[str]:
    return list(cells.reindex(variants).fillna("–"))


def _method(timed: pd.DataFrame) -> Markdown:
    return say(
        "Batch {batch} a rank, context {context}, AdamW; the variants take turns in the same processes, {steps} steps "
        "in all after {warmup} to warm up. A sample is the slowest rank's step by the host clock; the "
        "communication of a step is what is left to wait for after backward. MB of buckets are 2^20 bytes.",
        batch=count(timed["setting_batch_size_per_rank"].max()),
        context=count(timed["setting_context_length"].max()),
        steps=count(timed["n"].max()),
        warmup=count(timed["setting_warmup_steps"].max()),
    )


def _larger_buckets(measured: Sequence[Run]) -> list[Action]:
    """Advise another bucket size for PyTorch's DDP where it clearly beats the default and makes other buckets."""
    better = []
    for run in measured:
        best = run.fastest(["torch"])
        if best is None or TORCH_DEFAULT not in run.steps.index:
            continue
        default = run.steps.loc[TORCH_DEFAULT]
        if best["all_reduces"] != default["all_reduces"] and _clearly_faster(best, default):
            better.append((run, best))
    if not better:
        return []
    sizes = {int(best["bucket_size_mb"]) for _, best in better}
    cases = [
        say(
            "a step of {size} on {n} ranks in {name}{host} takes {ours} with {few} all-reduces instead of {default}"
            " with the {many} of 25 MB, the default",
            size=run.size,
            n=run.world_size,
            name=run.name,
            host=", which the host limits," if run.host_limited else "",
            ours=ms(best["median_ms"]),
            few=count(best["all_reduces"]),
            default=ms(run.steps.loc[TORCH_DEFAULT, "median_ms"]),
            many=count(run.steps.loc[TORCH_DEFAULT, "all_reduces"]),
        )
        for run, best in better
    ]
    what = say("**Set DDP's `bucket_cap_mb` to {sizes}.**", sizes=" or ".join(map(str, sorted(sizes))))
    return [Action(4, what, say("Then {cases}.", cases=Markdown("; ").join(cases)))]


def _average_less_often(measured: Sequence[Run]) -> list[Action]:
    """Advise to accumulate gradients where even the fastest way to average costs clearly."""
    costly = []
    for run in measured:
        best = run.fastest([*OURS, *TORCH])
        if (
            best is not None
            and NO_COMMUNICATION in run.steps.index
            and clear_gain(best, run.steps.loc[NO_COMMUNICATION])
        ):
            words = "{ms} a step of {size} on {n} ranks ({name}, {variant}){cost}"
            told = {"ms": ms(best["median_ms"]), "size": run.size, "n": run.world_size, "variant": best.name}
            costly.append(say(words, cost=_cost(run, best), name=run.name, **told))
    if not costly:
        return []
    what = say("**Average gradients less often: more work a rank between two averages.**")
    return [Action(3, what, say("Even the fastest way takes {costly}.", costly=Markdown("; ").join(costly)))]


def _clearly_faster(step: pd.Series, other: pd.Series) -> bool:
    return step["status"] == other["status"] == "ok" and clear_gain(other, step) is not None
