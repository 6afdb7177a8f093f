"""Write the write-up: first screen, one section per stage, how far to trust it, how to reproduce it."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from pipeline.report import facts, own
from pipeline.report.asked import Asked
from pipeline.report.chart import Chart
from pipeline.report.formats import code, count, interval, percent, text
from pipeline.report.frame import known, shares_a_cpu
from pipeline.report.markup import Markdown, unwrapped
from pipeline.report.section import Change, Part, Told, say
from pipeline.report.table import Columns, Table, filled, same
from pipeline.report.versus import FASTER, SAME, SLOWER, UNDECIDED

MOST_CHANGES = 8
# An undecided change that seems to gain less is not shown.
WORTH_A_LOOK = 1.05
# Tables of a stage of whose times so large a share is unstable would show noise.
MOST_UNSTABLE = 0.5
TRUST_LINE = (
    "{cells} cells, {times} times, {unstable} of them unstable (`~`), {lacking} cells without figures. "
    "[How far to trust it](#how-far-to-trust-it)."
)
MOSTLY_NOISE = "{unstable} of {times} times are unstable here: a table of them would show noise."
ON_ONE_CPU = (
    "The ranks share one CPU here, so these times say little of ranks with a GPU each. [course.md](course.md) has "
    "their tables."
)
SEVERAL_COMMITS = "{command}. The records come from {commits} commits, the last of them {last}; each names its own. "
EVERY_RECORD = (
    "Each record holds the command of its cell, `results/<stage>/cells.csv` all of them. Measured on and with: {facts}."
)
WHAT_TO_CHANGE = (
    "What to change. Each row is measured by itself, and gains do not multiply. With one repeat the interval is that "
    "of a single process:"
)
# What words such as unstable and faster mean: written by hand, true of every run.
RULES = Path(__file__).parent / "trust.md"


def writeup(asked: Asked, cells: pd.DataFrame, told: Sequence[Told]) -> Markdown:
    """Return the write-up as Markdown."""
    by_stage = facts.by_stage(cells, {each.stage.name: each.rows for each in told})
    blocks = [
        *first_screen(cells, told),
        " ".join(
            [
                _trust_line(cells, by_stage),
                *(each.section.trust for each in told if each.section and each.section.trust),
            ]
        ),
        *[block for each in told for block in section(each)],
        "## How far to trust it",
        unwrapped(RULES.read_text(encoding="utf-8").strip()),
        *_trust_tables(asked, cells, by_stage),
        "## Reproduce",
        _reproduce(asked, cells),
    ]
    return Markdown("\n\n".join(block for block in blocks if block) + "\n")


def first_screen(cells: pd.DataFrame, told: Sequence[Told]) -> list[str]:
    """Return the first screen's blocks: a line, a chart, the models, what to change, what to know first."""
    machines = " and ".join(sorted(cells["machine"].unique()))
    blocks: list[str] = [say("# {machines}: how fast it trains language models", machines=machines)]
    sections = [(each.stage.name, each.section) for each in told if each.section]
    for name, screen in ((name, found.first_screen) for name, found in sections if found.first_screen):
        blocks += [f"**{Markdown.escape(screen.line)}**"]
        blocks += [image(name, screen.chart)] if screen.chart and not screen.chart.is_empty else []
        blocks += _written(screen.models)
    rows = changes([change for _, found in sections for change in found.changes])
    columns: Columns = [
        ("change", "change", text),
        ("times as fast (interval)", "gain", text),
        *same(text, "verdict", "from", "to"),
        ("measured on", "where", text),
        ("repeats", "repeats", count),
    ]
    return [
        *blocks,
        *_written(own.first_table(told), Table("changes", WHAT_TO_CHANGE, rows, columns)),
        *_alarms(cells, told),
    ]


def changes(found: Sequence[Change]) -> pd.DataFrame:
    """Return the changes of the first screen: those that are faster, largest gain first, then undecided ones.

    Of the same change by several stages the first stands.
    """
    judged = ("ratio", "low", "high", "verdict", "repeats")
    lines = [
        {"change": each.what, "where": each.where, "from": each.before, "to": each.after}
        | {name: each.judged.get(name) for name in judged}
        for each in found
    ]
    rows = pd.DataFrame(lines, columns=["change", "where", "from", "to", *judged])
    rows = rows[~rows["verdict"].isin([SLOWER, SAME])]
    rows = rows[(rows["verdict"] == FASTER) | (rows["ratio"] >= WORTH_A_LOOK)].drop_duplicates("change")
    rows = rows.assign(gain=[interval(row) for _, row in rows.iterrows()])
    order = rows["verdict"].map({FASTER: 0, UNDECIDED: 1}).fillna(2)
    return rows.assign(order=order).sort_values(["order", "ratio"], ascending=[True, False]).head(MOST_CHANGES)


def section(told: Told) -> list[str]:
    """Return the blocks of a stage's section: question, answer, parts, note.

    Without figures the reason stands alone. Where times say little, why they do stands in place of parts and note; only
    the user's own are shown.
    """
    question = f"## {Markdown.escape(told.stage.question)}"
    if not told.section:
        return [question, _no_figures(told)]
    answer = say("**{answer}** All rows: {links}.", answer=told.section.answer, links=row_links(told))
    if words := _says_little(told):
        parts, note = [part for part in told.parts if part.name in own.PARTS], words
    else:
        parts, note = list(told.parts), told.note
    return [question, answer, *(part_markdown(told.stage.name, part) for part in parts), note]


def _says_little(told: Told) -> str:
    """Return why a stage's times say little, empty where they do: most are unstable, or ranks shared one CPU."""
    if shares_a_cpu(told.rows):
        return ON_ONE_CPU
    times = known(told.rows, "median_ms")
    unstable = int((times["status"] == "unstable").sum())
    mostly = len(times) and unstable >= MOST_UNSTABLE * len(times)
    return say(MOSTLY_NOISE, unstable=count(unstable), times=count(len(times))) if mostly else ""


def row_links(told: Told) -> Markdown:
    """Return links to the tables with all rows of a stage."""
    tables = told.rows[told.stage.split_axis].drop_duplicates().astype(str)
    link = "[{name}](../results/{stage}/{name}.csv)"
    return Markdown(", ").join(say(link, name=name, stage=told.stage.name) for name in tables)


def part_markdown(stage: str, part: Part) -> str:
    """Return a table or a chart of a stage as Markdown."""
    return image(stage, part) if isinstance(part, Chart) else part.markdown()


def image(stage: str, chart: Chart) -> str:
    """Return the link to a chart's drawing, with its title for those who do not see it."""
    title = str(Markdown.escape(chart.title)).replace("[", "&#91;")  # one without its partner would end the image
    return f"![{title}](figures/{stage}/{chart.name}.svg)"


def _written(*tables: Table) -> list[str]:
    return [table.markdown() for table in tables if not table.is_empty]


def _no_figures(told: Told) -> str:
    outcomes = told.rows["status"].value_counts()
    words = ", ".join(f"{count(number)} {outcome}" for outcome, number in outcomes.items())
    return say("No figures: {words}. {reason}", words=words, reason=next(iter(told.rows["reason"].dropna()), ""))


def _trust_line(cells: pd.DataFrame, by_stage: pd.DataFrame) -> str:
    sums = by_stage[["with figures", "times", "unstable"]].sum()
    lacking = len(cells) - sums["with figures"]
    numbers = {"cells": len(cells), "times": sums["times"], "unstable": sums["unstable"], "lacking": lacking}
    return say(TRUST_LINE, **{name: count(number) for name, number in numbers.items()})


def _alarms(cells: pd.DataFrame, told: Sequence[Told]) -> list[str]:
    """Return what a reader must see first: failed cells, cells measured beside other work, and what stages warn of."""
    ended: Columns = [
        *same(text, "stage"),
        *same(code, "cell"),
        ("how it ended", "reason", code),
        ("its log", "log", code),
    ]
    busy = facts.busy(cells).groupby("stage", sort=False).size().rename("cells").reset_index()
    return _written(
        Table(
            "failed",
            "Failed, so missing here. The same command tries again:",
            cells[cells["status"] == "failed"],
            ended,
        ),
        Table(
            "busy",
            "Measured while other processes kept more than half of the cores busy. Do not trust these times:",
            busy,
            [*same(text, "stage"), *same(count, "cells")],
        ),
        *(table for each in told if each.section for table in each.section.alarms),
    )


def _trust_tables(asked: Asked, cells: pd.DataFrame, by_stage: pd.DataFrame) -> list[str]:
    older = by_stage["stage"].map(facts.changed_since(cells, asked.outdated))
    by_stage = by_stage.assign(**{"by code changed since": older})
    told_of = by_stage[(by_stage["most repeats"] > 1) | older.notna()]
    spread = same(percent, "std between repeats", "furthest two")
    stages = [*same(text, "stage"), *same(count, "cells", "most repeats"), *spread]
    stages += same(count, "by code changed since")
    lacking: Columns = [
        *same(text, "outcome", "stage"),
        *same(count, "cells"),
        *same(text, "reason"),
        *same(code, "example"),
    ]
    missing: Columns = [*same(text, "stage"), *same(count, "cells"), *same(code, "what they share", "command")]
    return _written(
        Table(
            "stages",
            "How far repeats lie apart, by their whole steps where there are any:",
            told_of,
            filled(told_of, stages),
            all_rows=True,
        ),
        Table("lacking", "Cells without figures:", facts.without_figures(cells), lacking),
        Table(
            "missing",
            f"Not measured yet, although the scale {asked.scale} asks for it:",
            facts.missing(asked.missing),
            missing,
        ),
    )


def _reproduce(asked: Asked, cells: pd.DataFrame) -> str:
    words = ["snakemake", "--cores", "1", "reports/writeup.md", *(["--config", *asked.config] if asked.config else [])]
    commits = cells.sort_values("started_at")["commit"].dropna().astype(str).unique()
    machine = facts.machine(cells)
    return say(
        ("{command} in a clone at commit {last}. " if len(commits) < 2 else SEVERAL_COMMITS) + EVERY_RECORD,
        command=code(shlex.join(words)),
        last=commits[-1] if len(commits) else "unknown",
        commits=count(len(commits)),
        facts=Markdown("; ").join(say("{what}: {words}", what=what, words=words) for what, words in machine.items()),
    )
