"""The profile section: where a step's time goes by kind of kernel, softmax against products, the optimizer's share."""

from collections.abc import Sequence

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.outcomes import not_measured, nothing_measured
from pipeline.report.page_parts import Action, Figure, Section, Table, say
from pipeline.report.section import listing, ms, percent
from pipeline.report.tables import significant
from pipeline.stages.profile.cell import PASSES
from pipeline.stages.profile.report.facts import (
    MATMUL,
    PASS_WORDS,
    Capture,
    by_precision,
    captures,
    complete,
    lead,
    main_captures,
    setting,
    shown_pass,
)
from pipeline.stages.profile.report.figures import categories, layers
from pipeline.stages.profile.report.problems import problems
from pipeline.stages.profile.report.shown_names import shown_name

TITLE = "Where does a step's time go, kernel by kernel?"
EXERCISE = "nsys_profile"
WORTH_A_LOOK = 0.1  # of the kernel time
NAMED_CATEGORIES = 4
SHOWN_KERNELS = 6
NAME_LENGTH = 60


def build(rows: pd.DataFrame) -> Section:
    """Build the section from the rows of all its tables."""
    captured, rows = captures(rows), complete(rows)
    if not captured:
        return Section(TITLE, EXERCISE, nothing_measured(rows))
    shown = main_captures(captured)
    timed = rows[(rows["kind"] == "time") & (rows["clock"] == "host")]
    missing = not_measured(timed.assign(what=timed["precision"] + " " + timed["size"]), "what")
    return Section(
        TITLE,
        EXERCISE,
        _answer(shown),
        parts=[
            _categories(shown),
            *_layers(shown),
            _kernels(shown),
            *filter(None, [_profilers(captured), missing]),
        ],
        method=_method(shown),
        actions=[*_fuse_attention(shown), *_look_at_the_optimizer(shown)],
        problems=problems(shown),
    )


def _answer(shown: Sequence[Capture]) -> Markdown:
    first, path = lead(shown), shown_pass(shown)
    parts = [f"{percent(share)} {name}" for name, share in first.shares(path)[:NAMED_CATEGORIES].items() if share]
    others = [one for one in by_precision(shown, first) if one is not first and path in one.work_ms.index]
    return say(
        "A {what} ({setting}) is {total} of {work}: {parts}.{others}",
        what=PASS_WORDS[path],
        setting=setting(first),
        total=ms(first.total_ms(path)),
        work=first.work,
        parts=listing(parts),
        others="".join(
            f" In {one.cell.precision} it is {ms(one.total_ms(path))}, {percent(one.share(path, MATMUL))} {MATMUL}."
            for one in others
        ),
    )


def _categories(shown: Sequence[Capture]) -> Figure:
    first, path = lead(shown), shown_pass(shown)
    alike = [one for one in by_precision(shown, first) if path in one.work_ms.index]
    title = say(
        "Share of each kind of {work} in the time of a {what} (batch {batch}, context {context}): of {size} {matmul} "
        "is {shares}",
        work=first.work,
        what=PASS_WORDS[path],
        batch=first.batch_size,
        context=first.cell.context_length,
        size=first.cell.size,
        matmul=MATMUL,
        shares=listing(f"{percent(one.share(path, MATMUL))} in {one.cell.precision}" for one in alike),
    )
    return Figure("categories", title, categories([one for one in shown if path in one.work_ms.index], path))


def _layers(shown: Sequence[Capture]) -> list[Figure]:
    alike = [one for one in by_precision(shown, lead(shown)) if len(one.layer)]
    if not alike:
        return []
    lengths = [f"{ms(_end_us(one) / 1e3)} in {one.cell.precision}" for one in alike]
    title = say(
        "One layer's forward pass ({size}, context {context}): {work} by kind under the ranges that launched them, "
        "{lengths}",
        size=alike[0].cell.size,
        context=alike[0].cell.context_length,
        work=alike[0].work,
        lengths=listing(lengths),
    )
    return [Figure("layer", title, layers(alike))]


def _end_us(capture: Capture) -> float:
    return float((capture.layer["start_us"] + capture.layer["duration_us"]).max())


def _kernels(shown: Sequence[Capture]) -> Table:
    first, path = lead(shown), shown_pass(shown)
    top = first.top_kernels(path).head(SHOWN_KERNELS)
    title = say(
        "The {work} with the most time in a {what} ({setting}):",
        work=first.work,
        what=PASS_WORDS[path],
        setting=setting(first),
    )
    cells = {
        "name": [shown_name(name)[:NAME_LENGTH] for name in top["kernel"]],
        "kind": list(top["category"]),
        "calls": [f"{calls:.0f}" for calls in top["count"]],
        "time (ms)": [significant(time_ms) for time_ms in top["time_ms"]],
        "share": [percent(time_ms / first.total_ms(path)) for time_ms in top["time_ms"]],
    }
    return Table(title, pd.DataFrame(cells))


def _profilers(captured: Sequence[Capture]) -> Markdown:
    """Say how far two profilers of the same passes lie apart; nothing where there was one."""
    both = {}
    for one in captured:
        for name in one.times_ms["kernel_sum"].dropna().index.intersection(PASSES):
            key = (one.cell.precision, one.cell.size, one.cell.context_length, name)
            both.setdefault(key, {})[one.captured_by] = one.times_ms.loc[name, "kernel_sum"]
    pairs = [sums for sums in both.values() if len(sums) > 1]
    if not pairs:
        return Markdown()
    apart = max(max(sums.values()) / min(sums.values()) - 1 for sums in pairs)
    names = listing(dict.fromkeys(name for sums in pairs for name in sums))
    return say("{names} give kernel times of the same passes within {apart}.", names=names, apart=percent(apart))


def _method(shown: Sequence[Capture]) -> Markdown:
    first = lead(shown)
    if first.on_gpu:
        words = (
            "Captured by {by} after warm-up, {rounds} rounds. A kernel belongs to the range that launched it, found by "
            "the correlation id of the launching call. Beside each record lie the trace and a table of all kernels."
        )
    else:
        words = (
            "Captured by {by} after warm-up, {rounds} rounds. Each operator has the time in which it ran itself, not "
            "that of those it called. Beside each record lie the trace and a table of all operators."
        )
    by = listing(dict.fromkeys(one.captured_by for one in shown))
    return say(words, by=by, rounds=first.rounds)


def _fuse_attention(shown: Sequence[Capture]) -> list[Action]:
    """Advise fused attention where what surrounds its products takes a clear part of the forward pass."""
    first = lead(shown)
    part = first.attention.get("inference")
    if part is None or not first.on_gpu:
        return []
    total_ms = first.total_ms("inference")
    if part.total_ms - part.products_ms < WORTH_A_LOOK * total_ms:
        return []
    why = say(
        "{setting}: eager attention takes {attention} of the {total} of a forward pass, and its matrix products "
        "only {products} of that.",
        setting=setting(first),
        attention=ms(part.total_ms),
        total=ms(total_ms),
        products=ms(part.products_ms),
    )
    return [Action(3, Markdown("**Use fused attention.**"), why, "attention")]


def _look_at_the_optimizer(shown: Sequence[Capture]) -> list[Action]:
    """Point at AdamW where it takes a clear part of a training step of the largest model."""
    first, path = lead(shown), "train_step"
    if path not in first.work_ms.index or first.share(path, "optimizer") < WORTH_A_LOOK:
        return []
    others = [one for one in by_precision(shown, first) if one is not first and path in one.work_ms.index]
    shares = [f"{percent(one.share(path, 'optimizer'))} in {one.cell.precision}" for one in others]
    why = say(
        "{setting}: AdamW takes {optimizer} of the {total} of {work} in a training step ({share}{others}).",
        setting=setting(first),
        optimizer=ms(first.work_ms.loc[path, "optimizer"]),
        total=ms(first.total_ms(path)),
        work=first.work,
        share=percent(first.share(path, "optimizer")),
        others=f"; {listing(shares)}" if shares else "",
    )
    return [Action(3, Markdown("**Try another AdamW (`fused=True`).**"), why, "optimizer")]
