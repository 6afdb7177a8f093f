"""The ddp section: which bucket size, what hides behind backward, against PyTorch's DDP and no communication."""

from collections.abc import Mapping, Sequence

import pandas as pd

from pipeline.report.intervals import SAME, UNDECIDED
from pipeline.report.markup import Markdown
from pipeline.report.outcomes import clear_gain, not_measured, nothing_measured
from pipeline.report.page_parts import Action, Figure, Section, Table, say
from pipeline.report.repeats import verdict
from pipeline.report.section import count, listing, ms, percent
from pipeline.report.side_by_side import NONE, step_words, text_cells, whole_steps
from pipeline.report.tables import median_cells, significant
from pipeline.stages.ddp.report.facts import NO_COMMUNICATION, READING_ORDER, TORCH, TORCH_DEFAULT, Run, named, runs
from pipeline.stages.ddp.report.figures import bucket_sweep
from pipeline.stages.ddp.report.problems import problems

TITLE = "What does averaging gradients cost a step, and which bucket size is best?"
EXERCISE = "naive_ddp, minimal_ddp_flat, ddp_overlap_individual_parameters, ddp_bucketed"
OURS = ("naive", "flat", "overlap", "bucketed")
MOST_TABLE_RUNS = 2


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Build the section from the rows of all its tables.

    beside: the rows of the stage allreduce, from which the overhead model takes its cost of a call and of a byte.
    """
    whole, measured = whole_steps(named(rows)), runs(rows)
    if not measured:
        return Section(TITLE, EXERCISE, nothing_measured(whole))
    lead = next((run for run in measured if not run.host_limited), measured[0])
    others = " ".join(_verdict(run) for run in measured if run is not lead)
    return Section(
        TITLE,
        EXERCISE,
        _verdict(lead),
        parts=[others, *_figure(measured), _table(measured), not_measured(whole, "cell_name")],
        method=_method(pd.concat([run.steps for run in measured])),
        actions=[*_larger_buckets(measured), *_average_less_often(measured)],
        problems=problems(measured, beside["allreduce"]),
    )


def _verdict(run: Run) -> str:
    """Say how long a step takes with the best of ours and with PyTorch's DDP, and who decides that."""
    best, torch = run.fastest(OURS), run.fastest(TORCH)
    host, parts = "", []
    if run.host_limited:
        host = f", where the host limits the step (the GPU idles {percent(run.idle_share)} of it)"
    if best is not None:
        parts.append(f"our best takes {step_words(best)} a step with {best.name}{_cost(run, best)}")
    if torch is not None:
        default_ms = run.steps["median_ms"].get(TORCH_DEFAULT)
        tuned = ", without sending buffers and with gradients as views" if torch["impl"] == "torch_tuned" else ""
        default = f", {ms(default_ms)} with its default of 25 MB" if default_ms and torch.name != TORCH_DEFAULT else ""
        size = count(torch["bucket_size_mb"])
        parts.append(f"PyTorch's DDP takes {step_words(torch)} with buckets of {size} MB{tuned}{default}")
    words = "; ".join(parts) or "nothing that averages was measured"
    return f"{run.setup}{host}: {words}."


def _cost(run: Run, step: pd.Series) -> str:
    """Say how a step stands to one without communication; nothing where that was not measured."""
    if NO_COMMUNICATION not in run.steps.index:
        return ""
    base = run.steps.loc[NO_COMMUNICATION]
    without = f"without communication ({ms(base['median_ms'])})"
    if "unstable" in (base["status"], step["status"]):
        return f" ({ms(base['median_ms'])} without communication)"
    word = verdict(base, step).word
    if word in (SAME, UNDECIDED):
        return f", {word} {'as' if word == SAME else 'from'} {without}"
    share = step["median_ms"] / base["median_ms"] - 1
    return f", {percent(abs(share))} {'more' if share > 0 else 'less'} than {without}"


def _figure(measured: Sequence[Run]) -> list[Figure]:
    drawn = [run for run in measured if len(run.beyond_ms)]
    if not drawn:
        return []
    least = [f"{run.label} at least {ms(run.beyond_ms.min())} ({run.beyond_ms.idxmin()})" for run in drawn]
    return [Figure("buckets", f"What averaging adds to a step: {', '.join(least)}", bucket_sweep(drawn))]


def _table(measured: Sequence[Run]) -> Table:
    """Write ours and torch's variants, a row each, for at most two cells; the user's own have a table of theirs."""
    shown, lead = measured[:MOST_TABLE_RUNS], measured[0]
    variants = [variant for variant in READING_ORDER if any(variant in run.whole.index for run in shown)]
    columns: dict[str, list[str]] = {"variant": variants}
    are_told_by_precision = len({run.precision for run in shown}) == len(shown)
    for run in shown:
        name = run.precision if are_told_by_precision else run.name
        columns[f"{name}, step (ms)"] = list(median_cells(run.whole).reindex(variants).fillna("–"))
        columns[f"{name}, added (ms)"] = text_cells(run.beyond_ms, significant, variants)
    columns["all-reduces"] = text_cells(lead.steps["all_reduces"], count, variants)
    if lead.steps["peak_bytes"].notna().any():
        columns["peak (GB)"] = list(_peaks(lead.steps).reindex(variants).fillna(NONE))
    differ = any(" to " in peak for peak in columns.get("peak (GB)", []))
    ends = ", from the least to the most of its repeats," if differ else ""
    title = (
        f"Median step [quartiles] of {listing(run.setup for run in shown)}, and what it takes beyond one without "
        f"communication; all-reduces and the peak{ends} are those of {lead.precision}:"
    )
    return Table(title, pd.DataFrame(columns))


def _peaks(steps: pd.DataFrame) -> pd.Series:
    """Write each peak in GB, the least and the most of its repeats where these differ: `42.8 to 50.9`."""
    ends = (steps.get(end, steps["peak_bytes"]) / 1e9 for end in ("least_peak_bytes", "most_peak_bytes"))
    least, most = (peaks.map(significant, na_action="ignore") for peaks in ends)
    return least.where(least == most, least + " to " + most)


def _method(timed: pd.DataFrame) -> str:
    return (
        "AdamW. Naive: an all-reduce per parameter after backward; flat: one for all; overlap: per parameter during "
        "backward; bucketed, as torch's: per bucket. The variants take turns in the same processes, "
        f"{count(timed['n'].max())} steps of each after {timed['setting_warmup_steps'].max()} to warm up. A sample is "
        "the slowest rank's step by the host clock; the communication of a step is the time it still waits after "
        "backward. MB of buckets are 2^20 bytes."
    )


def _larger_buckets(measured: Sequence[Run]) -> list[Action]:
    """Advise another bucket size for PyTorch's DDP where it clearly beats the default and makes other buckets."""
    cases, sizes = [], set()
    for run in measured:
        best = run.fastest(["torch"])
        if best is None or TORCH_DEFAULT not in run.steps.index:
            continue
        default = run.steps.loc[TORCH_DEFAULT]
        if best["all_reduces"] != default["all_reduces"] and clear_gain(default, best):
            host = ". The host, which launches them, limits this step" + _elsewhere(measured, best.name)
            cases.append(
                f"a step of {run.setup} takes {ms(best['median_ms'])} instead of {ms(default['median_ms'])} with the "
                "default of 25 MB"
                f"{host if run.host_limited else ''}"
            )
            sizes.add(int(best["bucket_size_mb"]))
    what = say("**Set DDP's `bucket_cap_mb` to {sizes}.**", sizes=" or ".join(map(str, sorted(sizes))))
    return [Action(4, what, f"Then {'; '.join(cases)}.")] if cases else []


def _elsewhere(measured: Sequence[Run], variant: str) -> str:
    """Say what a variant gains over torch's default where the GPU limits the step; nothing where that was not timed."""
    for run in measured:
        if not run.host_limited and {variant, TORCH_DEFAULT} <= {*run.steps.index}:
            best_ms, default_ms = run.steps.loc[[variant, TORCH_DEFAULT], "median_ms"]
            return f"; in {run.name}, where the GPU does, it takes {ms(best_ms)} instead of {ms(default_ms)}"
    return ""


def _average_less_often(measured: Sequence[Run]) -> list[Action]:
    """Advise to accumulate gradients where even the fastest way to average costs clearly."""
    fastest = [(run, run.fastest([*OURS, *TORCH])) for run in measured if NO_COMMUNICATION in run.steps.index]
    costly = [
        f"{ms(best['median_ms'])} a step of {run.setup} with {best.name}{_cost(run, best)}"
        for run, best in fastest
        if best is not None and clear_gain(best, run.steps.loc[NO_COMMUNICATION])
    ]
    what = Markdown("**Average gradients less often: more work a rank between two averages.**")
    return [Action(3, what, f"Even the fastest way takes {'; '.join(costly)}.")] if costly else []
