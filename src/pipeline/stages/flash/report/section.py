"""The flash section: which attention kernel is fastest at which shapes, how exact ours is, and what it saves."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.outcomes import clear_gain, not_measured, nothing_measured
from pipeline.report.page_parts import MOST_TABLE_ROWS, Action, Figure, Section, Table, say
from pipeline.report.section import counted, listing, ms, number, ratio
from pipeline.report.side_by_side import step_words
from pipeline.report.table_rows import known, ok
from pipeline.report.tables import times_by
from pipeline.stages.flash.cell import GPU_ONLY, OURS, PEERS
from pipeline.stages.flash.report import figures
from pipeline.stages.flash.report.facts import (
    BOTH_PHASES,
    PROBLEM,
    WORDS,
    beside_peers,
    clear_winners,
    compared,
    fastest,
    one_head,
    ordered,
    ours,
    products_tflops_per_s,
    several_heads,
    shape_label,
    shape_words,
    usual_head_dim,
)
from pipeline.stages.flash.report.problems import problems
from pipeline.stages.flash.report.shapes import shapes

TITLE = "Which attention kernel is fastest?"
EXERCISE = "flash_forward, flash_backward, flash_benchmarking"
GPU_METHOD = (
    "CUDA events around each call, L2 flushed before it, launches queued ahead; implementations take turns, call by"
    " call; medians. Rates count the FLOPs under the mask only."
)
CPU_METHOD = "Host clock; implementations take turns, call by call; medians."


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame] | None = None) -> Section:
    """Return the section of the flash stage, from all its rows; beside: those of the stage ceilings."""
    rows = ordered(rows)
    if ok(rows).empty:
        return Section(TITLE, EXERCISE, nothing_measured(rows))
    on_gpu = bool((ok(rows)["clock"] == "device").any())
    if not on_gpu:
        rows = rows[~rows["impl"].isin(GPU_ONLY)]
    if ours(rows) is None:
        mine = not_measured(rows[rows["impl"].isin(OURS)], "impl")
        return Section(TITLE, EXERCISE, "Ours was not measured.", [mine])
    answered, models, products = problems(rows), several_heads(rows), products_tflops_per_s(beside)
    return Section(
        TITLE,
        ", ".join(problem.name for problem in answered) or EXERCISE,
        _answer(rows),
        parts=[
            *_figure(rows, products),
            *shapes(models, products),
            *_one_head_table(one_head(rows)),
            not_measured(rows, "impl"),
        ],
        method=GPU_METHOD if on_gpu else CPU_METHOD,
        actions=_kernels(models),
        problems=answered,
    )


def _answer(rows: pd.DataFrame) -> str:
    """Compare at the widest problem of real models, or else at the longest of one head; then over the one-head grid."""
    both = rows[rows["phase"] == BOTH_PHASES]
    models, heads = beside_peers(several_heads(both)), beside_peers(one_head(both))
    if models.empty and heads.empty:
        return f"Only {listing(ok(rows)['impl'].unique())} were measured."
    usual = heads[heads["head_dim"] == usual_head_dim(rows)]
    shown = models if len(models) else usual if len(usual) else heads
    # Models' widest shape comes first, and of one head the longest sequence last.
    row = shown[shown["dtype"] == shown["dtype"].iloc[0]].iloc[0 if len(models) else -1]
    here = ok(both)[(ok(both)[PROBLEM] == row[PROBLEM]).all(axis=1)]
    here = here[here["impl"].isin([row["impl"], row["impl_peer"], "eager"])].sort_values("median_ms")
    times = listing(f"{step_words(each)} with {WORDS[each['impl']]}" for _, each in here.iterrows())
    first = f"In {row['dtype']} ({shape_words(row)}) forward + backward takes {times}."
    if models.empty or heads.empty:
        return first
    return f"{first} With one head ours is a tenth or more faster than the best of torch's at {_ahead(heads)}."


def _ahead(pairs: pd.DataFrame) -> str:
    """Count, for each dtype, the problems at which ours is clearly faster than the fastest peer."""
    return listing(_ahead_in(dtype, lines) for dtype, lines in pairs.groupby("dtype", sort=False))


def _ahead_in(dtype: str, pairs: pd.DataFrame) -> str:
    peers = pairs.filter(regex="_peer$").rename(columns=lambda name: name.removesuffix("_peer"))
    both = zip(pairs.iterrows(), peers.iterrows(), strict=True)
    ahead = sum(clear_gain(peer, pair) is not None for (_, pair), (_, peer) in both)
    return f"{ahead} of {counted(len(pairs), 'problem')} in {dtype}"


def _figure(rows: pd.DataFrame, products: Mapping[str, float]) -> list[Figure]:
    """Show the shapes of real models, else of one head the longest; the title is of the fastest kernel at the first."""
    models, heads = several_heads(rows), one_head(rows)
    both = compared(models) if len(ok(models)) else heads[heads["head_dim"] == usual_head_dim(rows)].iloc[::-1]
    both = both[both["phase"] == BOTH_PHASES]
    if ok(both).empty:
        return []
    here = both[both["dtype"] == ok(both)["dtype"].iloc[0]]
    best = fastest(here).iloc[0]
    rate, peak = best["tflops_per_s"], best["peak_tflops_per_s"]
    title = (
        f"Forward + backward in {best['dtype']} ({shape_words(best)}) is fastest with {WORDS[best['impl']]}: "
        f"{number(rate)} TFLOP/s{f', of a peak of {number(peak)}' if rate <= peak else ''}"
    )
    return [Figure("rates", title, figures.rates(here, products))]


def _one_head_table(rows: pd.DataFrame) -> list[Table]:
    """Write the assignment's table, ours beside eager, of the first dtype and one head_dim, the longest sequences."""
    timed = ok(rows[rows["impl"] == ours(rows)])
    if timed.empty:
        return []
    dtype = timed["dtype"].iloc[0]
    head_dim = usual_head_dim(timed[timed["dtype"] == dtype])
    here = rows[(rows["dtype"] == dtype) & (rows["head_dim"] == head_dim) & rows["impl"].isin([ours(rows), "eager"])]
    here = here.sort_values("impl", key=lambda impl: impl == "eager", kind="stable")
    who = here["impl"].where(here["impl"] == "eager", "ours").replace({"eager": "plain"})
    cells = times_by(here, "seq_len", who + " " + here["phase"].replace({BOTH_PHASES: "both"}))
    title = f"One causal head of {head_dim} in {dtype}, medians in ms, ours and plain attention:"
    return [Table(title, cells.fillna("").tail(MOST_TABLE_ROWS).rename_axis("length").reset_index())]


def _kernels(rows: pd.DataFrame) -> list[Action]:
    """Advise, for each dtype, the kernel that is clearly fastest at most shapes of real models; why, once of a kind."""
    both = compared(rows[rows["phase"] == BOTH_PHASES])
    winners = {dtype: clear_winners(both[both["dtype"] == dtype]) for dtype in both["dtype"].unique()}
    winners = {dtype: found for dtype, found in winners.items() if len(found)}
    if not winners:
        return []
    best = {dtype: found["impl"].mode()[0] for dtype, found in winners.items()}
    # What holds in bf16 holds in fp16.
    told = pd.Series({dtype: impl for dtype, impl in best.items() if dtype != "fp16" or best.get("bf16") != impl})
    uses = listing(
        f"{WORDS[impl]} in {listing(dtypes)}" for impl, dtypes in told.groupby(told, sort=False).groups.items()
    )
    why = [_why_fastest(dtype, winners[dtype], both[both["dtype"] == dtype]) for dtype in told.index]
    why.append(Markdown("Shapes are batch × heads × length × head_dim."))
    if "triton" in set(told):
        why.append(Markdown("Ours are `FlashAttentionTriton` of `pipeline.attention`."))
    return [Action(2, say("**Where attention takes much of a step, use {uses}.**", uses=uses), Markdown(" ").join(why))]


def _why_fastest(dtype: str, winners: pd.DataFrame, both: pd.DataFrame) -> Markdown:
    """Say at how many shapes the kernel leads that does at most, with one of them, and name exceptions."""
    impl, shapes = winners["impl"].mode()[0], len(ok(both).drop_duplicates(PROBLEM))
    won, lost = winners[winners["impl"] == impl], winners[winners["impl"] != impl]
    first = won.iloc[0]
    at = "the one shape" if shapes == 1 else f"{'all' if len(won) == shapes else f'{len(won)} of'} {shapes} shapes"
    others = [_exceptions(other, found) for other, found in lost.groupby("impl", sort=False)]
    why = (
        f"In {dtype} the gain is a tenth or more at {at} of real models: forward + backward at "
        f"{shape_label(first)} takes {ms(first['median_ms'])}, and {ms(first['next_ms'])} with the next best, "
        f"{WORDS[first['next_impl']]}."
    )
    return Markdown.escape(why) + _choice(impl, known(won, "sdpa_choice")) + "".join(others)


def _exceptions(impl: str, found: pd.DataFrame) -> str:
    labels = [shape_label(row) for _, row in found.iterrows()]
    most = f"{'up to ' if len(found) > 1 else ''}{ratio(found['gain'].max())}"
    return f" At {listing(labels)} the fastest is {WORDS[impl]}, {most} as fast as the next."


def _choice(impl: str, winners: pd.DataFrame) -> Markdown:
    """Say whether SDPA takes this backend by itself."""
    if not impl.startswith("sdpa_") or impl not in PEERS or winners.empty:
        return Markdown()
    if (winners["sdpa_choice"] == impl).all():
        return Markdown(" SDPA picks it by default: there is nothing to change.")
    return Markdown(" SDPA picks another by default: ask for it with `torch.nn.attention.sdpa_kernel`.")
