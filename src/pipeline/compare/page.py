"""Write a comparison as Markdown for a terminal, and as one HTML file to explore."""

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
from pipeline.report.section import Part, say
from pipeline.report.table import Table, named
from pipeline.report.versus import SAME
from pipeline.report.writeup import blocks

OF_SIDES = {"median_ms": "ms, ", "repeats": "repeats ", "bytes": "", "status": "outcome in "}
HEADS = {"gain": "B times as fast (interval)", "ratio": "B over A", "reason_b": "reason"}
HEADS |= {f"{name}_{of}": f"{head}{of.upper()}" for name, head in OF_SIDES.items() for of in "ab"}
OF_ROW = "stage cell:code row"
OF_TIME = {head: name for name, head in HEADS.items() if name.startswith("median_ms")}
OF_TIME |= {"B times as fast": "ratio", "low": "low", "high": "high"}
Parts = Sequence[Markdown | Part]


def comparison(
    runs: Sequence[Run], prices: Mapping[str, float], pair: Pair | None, beside: Table | None, every: bool = False
) -> Parts:
    """Return what compares runs: models, ceilings, what differs; of two also row by row; beside: published values.

    every: all rows, and times that are the same too.
    """
    told = "**{name}**: {machine}, {source}"
    head = [say(told, name=run.name, machine=run.machine, source=run.source) for run in runs]
    parts = [models(runs, prices), ceilings(runs), differences(runs), *(_details(pair, every) if pair else [])]
    parts += [replace(beside, all_rows=every)] if beside else []
    return [Markdown("\\\n").join(head), *parts]


def explored(pair: Pair | None, beside: Table | None) -> dict[str, RowTable]:
    """Return the tables that a reader of the page filters: every time of two runs, every published value."""
    found = {}
    if pair is not None and len(pair.times):
        rows = pair.times[[*KEYS, "verdict", *OF_TIME.values()]]
        found["times"] = row_table(rows.set_axis([*KEYS, "verdict", *OF_TIME], axis="columns"), {})
    return found | ({"published": row_table(beside.rows, {})} if beside else {})


def one_row(rows: pd.DataFrame) -> Parts:
    """Return what follows one row over runs."""
    return [say("**{row}**", row=rows["row"].iloc[0]), history.chart(rows), history.table(rows)]


def markdown(parts: Parts, drawn: bool = False) -> Markdown:
    """Return parts as Markdown; drawn: with links to charts' drawings."""
    shown = [part for part in parts if drawn or not isinstance(part, Chart)]
    found = [[part] if isinstance(part, Markdown) else blocks("compare", [part]) for part in shown]
    return Markdown("\n\n".join(chain(*found)))


def html(runs: Sequence[Run], parts: Parts, tables: Mapping[str, RowTable]) -> str:
    """Return parts as an HTML page."""
    title = say("# {names} compared", names=" and ".join(dict.fromkeys(run.machine for run in runs)))
    charts = {f"compare/{part.name}": part for part in parts if isinstance(part, Chart)}
    return page(markdown([title, *parts], drawn=True), charts, tables)


def _details(pair: Pair, every: bool) -> list[Part]:
    times = pair.times if every else pair.times[pair.times["verdict"] != SAME]
    verdicts = pair.times["verdict"].value_counts(sort=False).rename("times").reset_index()
    in_both, in_a, in_b = (pair.outcomes[pair.outcomes["of"] == of] for of in ("both", "left_only", "right_only"))
    of_time = "quantity median_ms_a median_ms_b gain verdict repeats_a repeats_b"
    tables = [
        ("times", "Times that differ, slowest first:", times, of_time),
        ("memory", "Memory peaks that differ:", pair.memory, "quantity bytes_a bytes_b ratio:times"),
        ("outcomes", "Outcomes that changed:", in_both, "status_a status_b reason_b"),
        ("only_a", "Only in A:", in_a, "status_a"),
        ("only_b", "Only in B:", in_b, "status_b"),
    ]
    return [
        *([_ratios(pair)] if len(pair.times) else []),
        Table("verdicts", "Times by verdict:", verdicts, named(verdicts, "verdict times")),
        *(
            Table(name, caption, rows, named(rows, f"{OF_ROW} {names}", **HEADS), every)
            for name, caption, rows, names in tables
        ),
    ]


def _ratios(pair: Pair) -> Chart:
    rows = pair.times.assign(line=pair.times["stage"] + ", " + pair.times["quantity"])
    return Chart(
        "ratios",
        "How many times as fast B is, one point per time that both have",
        rows.sort_values(["stage", "quantity"], kind="stable"),
        "strip",
        Axis("ratio", "B times as fast", log=True),
        Axis("line"),
        "verdict",
        limits=[Limit(1.0, "the same")],
        hover={"cell": "cell", "row": "row", **OF_TIME},
    )
