"""The flash section: which attention kernel is fastest at which shapes, how exact ours is, and what it saves."""

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.outcomes import clear_gain, not_measured, nothing_measured
from pipeline.report.page_parts import Action, Figure, Section, Table, say
from pipeline.report.section import counted, listing, ms, number, ratio
from pipeline.report.table_rows import known, ok
from pipeline.report.tables import significant, with_outcomes
from pipeline.stages.flash.cell import GPU_ONLY, OURS, PEERS
from pipeline.stages.flash.report import figures
from pipeline.stages.flash.report.facts import (
    BOTH_PHASES,
    PROBLEM,
    WORDS,
    beside_peers,
    clear_winners,
    fastest,
    one_head,
    ordered,
    ours,
    several_heads,
    shape_label,
    shape_words,
    usual_head_dim,
)
from pipeline.stages.flash.report.problems import problems

TITLE = "Which attention kernel is fastest?"
EXERCISE = "flash_forward, flash_backward, flash_benchmarking"
MOST_ROWS = 12
GPU_METHOD = Markdown(
    "CUDA events around each call, L2 flushed before it, launches queued ahead; implementations take turns, call by"
    " call; medians. Rates count the FLOPs under the mask only."
)
CPU_METHOD = Markdown("Host clock; implementations take turns, call by call; medians.")


def build(rows: pd.DataFrame) -> Section:
    """Return the section of the flash stage, from all its rows."""
    rows = ordered(rows)
    if ok(rows).empty:
        return Section(TITLE, EXERCISE, nothing_measured(rows))
    on_gpu = bool((ok(rows)["clock"] == "device").any())
    if not on_gpu:
        rows = rows[~rows["impl"].isin(GPU_ONLY)]
    if ours(rows) is None:
        mine = not_measured(rows[rows["impl"].isin(OURS)], "impl")
        return Section(TITLE, EXERCISE, Markdown("Ours was not measured."), [mine])
    answered = problems(rows)
    return Section(
        TITLE,
        ", ".join(problem.name for problem in answered) or EXERCISE,
        _answer(rows),
        parts=[
            say(
                "`{mine}` is {words}, `sdpa` torch's `scaled_dot_product_attention`{backends}.",
                mine=ours(rows),
                words=WORDS[ours(rows)],
                backends=" by one of its backends" if on_gpu else "",
            ),
            *_shapes_figure(several_heads(rows)),
            *_shapes_table(several_heads(rows)),
            *_one_head_figure(one_head(rows)),
            *_one_head_table(one_head(rows)),
            not_measured(rows, "impl"),
        ],
        method=GPU_METHOD if on_gpu else CPU_METHOD,
        actions=[action for dtype in rows["dtype"].unique() for action in _kernel(several_heads(rows), dtype)],
        problems=answered,
    )


def _answer(rows: pd.DataFrame) -> Markdown:
    """Compare at the widest problem of real models, or else at the longest of one head; then over the one-head grid."""
    both = rows[rows["phase"] == BOTH_PHASES]
    models, heads = beside_peers(several_heads(both)), beside_peers(one_head(both))
    if models.empty and heads.empty:
        return say("Only {impls} were measured.", impls=listing(ok(rows)["impl"].unique()))
    usual = heads[heads["head_dim"] == usual_head_dim(rows)]
    shown = models if len(models) else usual if len(usual) else heads
    # Models' widest shape comes first, and of one head the longest sequence last.
    row = shown[shown["dtype"] == shown["dtype"].iloc[0]].iloc[0 if len(models) else -1]
    at_row = ok(both)[(ok(both)[PROBLEM] == row[PROBLEM]).all(axis=1)].set_index("impl")["median_ms"]
    shown = at_row[[impl for impl in dict.fromkeys((row["impl"], row["impl_peer"], "eager")) if impl in at_row]]
    times = [f"{ms(time)} with {WORDS[impl]}" for impl, time in shown.sort_values().items()]
    first = say(
        "In {dtype} ({shape}) forward + backward takes {times}.",
        dtype=row["dtype"],
        shape=shape_words(row),
        times=listing(times),
    )
    if models.empty or heads.empty:
        return first
    second = say(
        "With one head ours takes at least a tenth less time than any of torch's at {counts}.", counts=_ahead(heads)
    )
    return Markdown(" ").join([first, second])


def _ahead(pairs: pd.DataFrame) -> str:
    """Count, for each dtype, the problems at which ours is clearly faster than the fastest peer."""
    return listing(
        f"{sum(map(_is_ahead, lines.to_dict('records')))} of {counted(len(lines), 'problem')} in {dtype}"
        for dtype, lines in pairs.groupby("dtype", sort=False)
    )


def _is_ahead(pair: dict) -> bool:
    peer = pd.Series({name: pair[f"{name}_peer"] for name in ("median_ms", "q1_ms", "q3_ms")})
    return clear_gain(peer, pd.Series(pair)) is not None


def _shapes_figure(rows: pd.DataFrame) -> list[Figure]:
    """Show the dtype of most shapes; its title names the fastest kernel at the first of them, and its rate."""
    both = rows[rows["phase"] == BOTH_PHASES]
    if ok(both).empty:
        return []
    here = both[both["dtype"] == ok(both)["dtype"].iloc[0]]
    best = fastest(here).iloc[0]
    title = say(
        "{words} does {rate} TFLOP/s forward + backward in {dtype} ({shape}), of a peak of {peak}",
        words=WORDS[best["impl"]],
        rate=number(best["tflops_per_s"]),
        dtype=best["dtype"],
        shape=shape_words(best),
        peak=number(best["peak_tflops_per_s"]),
    )
    return [Figure("rates", title, figures.rates(here[here["impl"] != "tiled"]))]


def _shapes_table(rows: pd.DataFrame) -> list[Table]:
    pairs = beside_peers(rows)
    if pairs.empty:
        return []
    forward = pairs[pairs["phase"] == "forward"].set_index(PROBLEM)
    both = pairs[pairs["phase"] == BOTH_PHASES].head(MOST_ROWS)
    eager = rows[(rows["impl"] == "eager") & (rows["phase"] == BOTH_PHASES)].set_index(PROBLEM)["median_ms"]
    keys = [tuple(key) for key in both[PROBLEM].to_numpy()]
    cells = pd.DataFrame(
        {
            "dtype": both["dtype"],
            "batch×heads×length×head_dim": both.apply(shape_label, axis=1),
            "ours": both["median_ms"].map(significant),
            "fastest of torch's": both["median_ms_peer"].map(significant),
            "which": both["impl_peer"],
            "ratio": both["median_ratio"].map(significant),
            "ratio, forward": [significant(forward["median_ratio"].get(key, float("nan"))) for key in keys],
            "eager": [significant(eager.get(key, float("nan"))) for key in keys],
        }
    )
    title = Markdown("Shapes of real models, forward + backward in ms; above a ratio of one ours takes less time:")
    return [Table(title, cells)]


def _one_head_figure(rows: pd.DataFrame) -> list[Figure]:
    pairs = beside_peers(rows)
    pairs = pairs[pairs["phase"] == BOTH_PHASES]
    if pairs.empty:
        return []
    title = say(
        "With one causal head ours takes at least a tenth less time than any of torch's at {counts}; numbers: the"
        " fastest of torch's over ours; grey: not measured",
        counts=_ahead(pairs),
    )
    return [Figure("one_head", title, figures.ratios(rows))]


def _one_head_table(rows: pd.DataFrame) -> list[Table]:
    """Write the assignment's table, ours beside eager, of the first dtype and one head_dim, the longest sequences."""
    timed = ok(rows[rows["impl"] == ours(rows)])
    if timed.empty:
        return []
    dtype, head_dim = timed["dtype"].iloc[0], usual_head_dim(timed[timed["dtype"] == timed["dtype"].iloc[0]])
    here = rows[(rows["dtype"] == dtype) & (rows["head_dim"] == head_dim)]
    here = here[here["impl"].isin([ours(rows), "eager"])]
    times = with_outcomes(here["median_ms"].map(significant), here.assign(reason=None))
    column = here["impl"] + " " + here["phase"].replace({BOTH_PHASES: "both"})
    cells = here.assign(cell=times, column=column).pivot(index="seq_len", columns="column", values="cell")
    cells = cells.reindex(columns=column.unique()).fillna("").tail(MOST_ROWS).rename_axis(columns=None)
    title = say(
        "One causal head of {head_dim} in {dtype}, medians in ms, ours and the plain formula:",
        head_dim=head_dim,
        dtype=dtype,
    )
    return [Table(title, cells.reset_index().rename(columns={"seq_len": "length"}))]


def _kernel(rows: pd.DataFrame, dtype: str) -> list[Action]:
    """Advise, for one dtype, the kernel that is clearly fastest at most shapes of real models, and name exceptions."""
    both = rows[(rows["dtype"] == dtype) & (rows["phase"] == BOTH_PHASES)]
    winners = clear_winners(both)
    if winners.empty:
        return []
    impl = winners["impl"].mode()[0]
    first = winners[winners["impl"] == impl].iloc[0]
    others = [
        say(
            " At {shape} it is {words}, {gain} as fast as the next.",
            shape=shape_label(row),
            words=WORDS[row["impl"]],
            gain=ratio(row["gain"]),
        )
        for _, row in winners[winners["impl"] != impl].iterrows()
    ]
    why = say(
        "Forward + backward takes {time}, with the next best, {next_words}, {next_time} ({shape}). It leads by a tenth"
        " or more at {wins} of real models.{choice}{others}",
        wins=_share_of((winners["impl"] == impl).sum(), len(ok(both).drop_duplicates(PROBLEM))),
        time=ms(first["median_ms"]),
        shape=shape_words(first),
        next_time=ms(first["next_ms"]),
        next_words=WORDS[first["next_impl"]],
        choice=_choice(impl, known(winners[winners["impl"] == impl], "sdpa_choice")),
        others=Markdown("").join(others),
    )
    return [Action(2, say("**Attention in {dtype}: use {words}.**", dtype=dtype, words=WORDS[impl]), why)]


def _share_of(wins: int, shapes: int) -> str:
    if shapes == 1:
        return "the one shape"
    return f"all {shapes} shapes" if wins == shapes else f"{wins} of {shapes} shapes"


def _choice(impl: str, winners: pd.DataFrame) -> Markdown:
    """Say whether SDPA takes this backend by itself."""
    if not impl.startswith("sdpa_") or impl not in PEERS or winners.empty:
        return Markdown()
    if (winners["sdpa_choice"] == impl).all():
        return Markdown(" SDPA picks it by default.")
    return Markdown(" SDPA picks another by default: ask for it with `torch.nn.attention.sdpa_kernel`.")
