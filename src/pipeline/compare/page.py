"""Write a comparison as Markdown, and as one HTML file to explore."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import pandas as pd

from pipeline.compare import history
from pipeline.compare.machines import ceilings, differences, models
from pipeline.compare.pair import KEYS, Pair
from pipeline.compare.runs import Run
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.html.page import RowTable, page, row_table
from pipeline.report.markup import Markdown
from pipeline.report.section import Part
from pipeline.report.table import Table
from pipeline.report.versus import FASTER, SAME, SLOWER, UNDECIDED
from pipeline.report.words import Words
from pipeline.report.writeup import blocks

WORDS = Words(__file__)
# Columns of the page's table of times, by heading.
TIME_COLUMNS = {"ms, A": "median_ms_a", "ms, B": "median_ms_b", "speed-up of B": "ratio", "low": "low", "high": "high"}
Parts = Sequence[Markdown | Part]


def comparison(
    runs: Sequence[Run], prices: Mapping[str, float], pair: Pair | None, published: Table | None, show_all: bool = False
) -> Parts:
    """Return the parts of a comparison: models, ceilings, differences and, for two runs, row by row.

    published: published values. show_all: show all rows, and undecided and unchanged times too.
    """
    price_texts = {run.name: WORDS.say("price", usd=prices[run.name]) if run.name in prices else "" for run in runs}
    letters = ["A: ", "B: "] if pair else [""] * len(runs)
    head = [
        WORDS.say("run", letter=letter, price=price_texts[run.name], run=run)
        for letter, run in zip(letters, runs, strict=True)
    ]
    details = _details(pair, [run.name for run in runs], show_all) if pair else []
    parts = [models(runs, prices), ceilings(runs), differences(runs), *details]
    parts += [_shown(published, show_all)] if published else []
    return [Markdown("\\\n").join(head), *parts]


def filterable_tables(pair: Pair | None, published: Table | None) -> dict[str, RowTable]:
    """Return the tables that can be filtered on the page: every time of two runs, every published value."""
    found = {}
    if pair is not None and len(pair.times):
        rows = pair.times[[*KEYS, "verdict", *TIME_COLUMNS.values()]]
        found["times"] = row_table(rows.set_axis([*KEYS, "verdict", *TIME_COLUMNS], axis="columns"), {})
    return found | ({"published": row_table(published.rows, {})} if published else {})


def one_row(rows: pd.DataFrame) -> Parts:
    """Return the parts that show the history of one row: its name, chart and table."""
    return [WORDS.say("row", **rows.iloc[0]), history.chart(rows), history.table(rows)]


def markdown(parts: Parts, drawn: bool = False) -> Markdown:
    """Return parts as Markdown; drawn: include charts, as links to their drawings."""
    shown = [part for part in parts if drawn or not isinstance(part, Chart)]
    texts = [[part] if isinstance(part, Markdown) else blocks("compare", [part]) for part in shown]
    return Markdown("\n\n".join(chain(*texts)))


def html(runs: Sequence[Run], parts: Parts, tables: Mapping[str, RowTable]) -> str:
    """Return parts as an HTML page."""
    title = WORDS.say("title", names=" and ".join(dict.fromkeys(run.machine for run in runs)))
    charts = {f"compare/{part.name}": part for part in parts if isinstance(part, Chart)}
    return page(markdown([title, *parts], drawn=True), charts, tables)


def _shown(table: Table, show_all: bool) -> Table:
    return replace(table, all_rows=show_all, hint=WORDS.say("left_out"))


def _details(pair: Pair, names: Sequence[str], show_all: bool) -> list[Part]:
    verdicts = pair.times.groupby(["quantity", "verdict"], sort=False).size().rename("times").reset_index()
    in_both, in_a, in_b = (pair.outcomes[pair.outcomes["of"] == of] for of in ("both", "left_only", "right_only"))
    time_columns = "quantity median_ms_a median_ms_b gain verdict repeats_a repeats_b"
    verdict_names = (SLOWER, FASTER, UNDECIDED, SAME) if show_all else (SLOWER, FASTER)
    shown = {
        **{word: (pair.times[pair.times["verdict"] == word], time_columns) for word in verdict_names},
        "other_work": (pair.other_work, "work_a work_b"),
        "memory": (pair.memory, "quantity bytes_a bytes_b ratio:times"),
        "outcomes": (in_both, "status_a status_b reason_b"),
        "only_a": (in_a, "status_a"),
        "only_b": (in_b, "status_b"),
    }
    tables = [
        _shown(WORDS.table(name, rows, f"stage cell:code row {columns}", a=names[0], b=names[1]), show_all)
        for name, (rows, columns) in shown.items()
    ]
    ratios = [_ratios(pair)] if len(pair.times) else []
    return [*ratios, WORDS.table("verdicts", verdicts, "quantity verdict times", across="verdict"), *tables]


def _ratios(pair: Pair) -> Chart:
    rows = pair.times.assign(line=pair.times["stage"] + ", " + pair.times["quantity"])
    rows = rows.sort_values(["stage", "quantity"], kind="stable")
    hover, limits = "cell row median_ms_a median_ms_b low high", [Limit(1.0, "the same")]
    return WORDS.chart("ratios", rows, "strip", Axis("ratio", log=True), "line", "verdict", hover=hover, limits=limits)
