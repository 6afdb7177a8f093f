"""The profile section: where a step's time goes by kind of kernel, and by kernel."""

from collections.abc import Sequence

import pandas as pd

from pipeline.report.outcomes import not_measured, nothing_measured
from pipeline.report.page_parts import Figure, Section, Table
from pipeline.report.section import counted, listing, ms, percent
from pipeline.report.tables import significant
from pipeline.stages.profile.cell import PASSES
from pipeline.stages.profile.report.facts import (
    MATMUL,
    PASS_WORDS,
    Capture,
    captures,
    having,
    lead,
    main_captures,
    shown_pass,
    sorted_rows,
)
from pipeline.stages.profile.report.figures import categories
from pipeline.stages.profile.report.problems import problems
from pipeline.stages.profile.report.shown_names import shown_name

TITLE = "Where does a step's time go, kernel by kernel?"
EXERCISE = "nsys_profile"
NAMED_CATEGORIES = 4
SHOWN_KERNELS = 6
NAME_LENGTH = 60
METHOD = "By {by} after warm-up, {rounds}. {what} Beside each record lie the trace and a table of all {work}."
OF_KERNELS = "A kernel belongs to the range that launched it, found by the correlation id of the launching call."
OF_OPERATORS = "Each operator has the time in which it ran itself, not that of those it called."


def build(rows: pd.DataFrame) -> Section:
    """Build the section from the rows of all its tables."""
    captured, rows = captures(rows), sorted_rows(rows)
    if not captured:
        return Section(TITLE, EXERCISE, nothing_measured(rows))
    shown = main_captures(captured)
    first, path = lead(shown), shown_pass(shown)
    timed = rows[(rows["kind"] == "time") & (rows["clock"] == "host")]
    return Section(
        TITLE,
        EXERCISE,
        _answer(shown, first, path),
        parts=[
            _categories(shown, first, path),
            _kernels(first, path),
            _profilers(captured),
            not_measured(timed.assign(what=timed["precision"] + " " + timed["size"]), "what"),
        ],
        method=METHOD.format(
            by=listing(dict.fromkeys(one.captured_by for one in shown)),
            rounds=counted(first.rounds, "round"),
            work=first.work,
            what=OF_KERNELS if first.on_gpu else OF_OPERATORS,
        ),
        problems=problems(shown),
    )


def _answer(shown: Sequence[Capture], first: Capture, path: str) -> str:
    parts = [f"{percent(share)} {name}" for name, share in first.shares(path)[:NAMED_CATEGORIES].items() if share]
    others = [
        f" In {one.cell.precision} it is {ms(one.total_ms(path))}, {percent(one.share(path, MATMUL))} {MATMUL}."
        for one in having(shown, path, first)
        if one is not first
    ]
    total = f"{ms(first.total_ms(path))} of {first.work}"
    return f"A {PASS_WORDS[path]} ({first.setting}) is {total}: {listing(parts)}.{''.join(others)}"


def _categories(shown: Sequence[Capture], first: Capture, path: str) -> Figure:
    shares = [f"{percent(one.share(path, MATMUL))} in {one.cell.precision}" for one in having(shown, path, first)]
    title = (
        f"Share of each kind of {first.work} in the time of a {PASS_WORDS[path]} (batch {first.batch_size}, context "
        f"{first.cell.context_length}): of {first.cell.size} {MATMUL} is {listing(shares)}"
    )
    return Figure("categories", title, categories(having(shown, path), path))


def _kernels(first: Capture, path: str) -> Table:
    top = first.top_kernels(path).head(SHOWN_KERNELS)
    cells = {
        "name": [shown_name(name)[:NAME_LENGTH] for name in top["kernel"]],
        "kind": top["category"],
        "calls": top["count"].map("{:.0f}".format),
        "time (ms)": top["time_ms"].map(significant),
        "share": (top["time_ms"] / first.total_ms(path)).map(percent),
    }
    title = f"The {first.work} with the most time in a {PASS_WORDS[path]} ({first.setting}):"
    return Table(title, pd.DataFrame(cells).reset_index(drop=True))


def _profilers(captured: Sequence[Capture]) -> str:
    """Say how far two profilers of the same passes lie apart; nothing where there was one."""
    lines = [
        {"of": (one.cell.precision, one.cell.size, one.cell.context_length, path), "by": one.captured_by, "ms": sum_ms}
        for one in captured
        for path, sum_ms in one.times_ms["kernel_sum"].dropna().items()
        if path in PASSES
    ]
    every = pd.DataFrame(lines, columns=["of", "by", "ms"])
    sums = every.groupby("of", sort=False).filter(lambda same: same["by"].nunique() > 1)
    if sums.empty:
        return ""
    of_passes = sums.groupby("of")["ms"]
    apart = (of_passes.max() / of_passes.min()).max() - 1
    return f"{listing(sums['by'].unique())} give kernel times of the same passes within {percent(apart)}."
