"""Write the write-up: first screen, one section per stage, how far to trust it, how to reproduce it."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from pipeline.cells.stage import Stages
from pipeline.report import facts, own
from pipeline.report.asked import Asked
from pipeline.report.chart import Chart
from pipeline.report.formats import code, count, interval, percent, text
from pipeline.report.frame import known
from pipeline.report.markup import Markdown, unwrapped
from pipeline.report.section import Change, Part, say
from pipeline.report.table import Columns, Table, filled
from pipeline.report.told import Told
from pipeline.report.versus import FASTER, SAME, SLOWER, UNDECIDED

MOST_CHANGES = 8
# An undecided change that seems to gain less is not shown.
WORTH_A_LOOK = 1.05
# Tables of a stage of whose times so large a share is unstable would show noise.
MOST_UNSTABLE = 0.5
TRUST = "How far to trust it"
SEVERAL_COMMITS = "{command}. The records come from {commits} commits, the last of them {last}; each names its own. "
EVERY_RECORD = (
    "Each record holds the command of its cell, `results/<stage>/cells.csv` all of them. Measured on and with: {facts}."
)
# What words such as unstable and faster mean: written by hand, true of every run.
RULES = Path(__file__).parent / "trust.md"


def writeup(
    asked: Asked, cells: pd.DataFrame, told: Sequence[Told], frames: Mapping[str, pd.DataFrame], stages: Stages
) -> Markdown:
    """Return the write-up as Markdown."""
    blocks = [
        *first_screen(cells, told, frames, stages),
        *[block for each in told for block in section(each)],
        *_trust(asked, cells, told, frames),
        *_reproduce(asked, cells),
    ]
    return Markdown("\n\n".join(block for block in blocks if block) + "\n")


def first_screen(
    cells: pd.DataFrame, told: Sequence[Told], frames: Mapping[str, pd.DataFrame], stages: Stages
) -> list[str]:
    """Return the first screen's blocks: a line, a chart, the models, what to change, what to know first."""
    machines = " and ".join(sorted(cells["machine"].unique()))
    screens = [(each, each.section.first_screen) for each in told if each.section and each.section.first_screen]
    blocks: list[str] = [say("# {machines}: how fast it trains language models", machines=machines)]
    for each, screen in screens:
        blocks += [f"**{Markdown.escape(screen.line)}**"]
        blocks += [image(each.stage.name, screen.chart)] if screen.chart and not screen.chart.is_empty else []
        blocks += [screen.models.markdown()] if len(screen.models.rows) else []
    mine = own.first_rows(frames, stages)
    blocks += [own.first_table(mine).markdown()] if len(mine) else []
    rows = changes([change for each in told if each.section for change in each.section.changes])
    blocks += [_changes_table(rows).markdown()] if len(rows) else []
    return [*blocks, *_alarms(cells, told), " ".join([_trust_line(cells, frames), *_trusted(told)])]


def changes(found: Sequence[Change]) -> pd.DataFrame:
    """Return the changes of the first screen: those that are faster, largest gain first, then undecided ones.

    Of the same change by several stages the first stands.
    """
    rows = pd.DataFrame(
        [
            {
                "change": change.what,
                "where": change.where,
                "from": change.before,
                "to": change.after,
                **{name: change.judged.get(name) for name in ("ratio", "low", "high", "verdict", "repeats")},
            }
            for change in found
            if change.judged.get("verdict") not in (SLOWER, SAME)
        ]
    )
    if rows.empty:
        return rows
    rows = rows[(rows["verdict"] == FASTER) | (rows["ratio"] >= WORTH_A_LOOK)]
    rows = rows.drop_duplicates("change")
    rows = rows.assign(gain=[interval(row) for _, row in rows.iterrows()])
    order = rows["verdict"].map({FASTER: 0, UNDECIDED: 1}).fillna(2)
    return rows.assign(order=order).sort_values(["order", "ratio"], ascending=[True, False]).head(MOST_CHANGES)


def _changes_table(rows: pd.DataFrame) -> Table:
    """Return the first screen's table of changes."""
    columns: Columns = [
        ("change", "change", text),
        ("times as fast (interval)", "gain", text),
        ("verdict", "verdict", text),
        ("from", "from", text),
        ("to", "to", text),
        ("measured on", "where", text),
        ("repeats", "repeats", count),
    ]
    caption = (
        "What to change. Each row is measured by itself, and gains do not multiply. With one repeat the interval is "
        "that of a single process:"
    )
    return Table("changes", caption, rows, columns)


def section(told: Told) -> list[str]:
    """Return the blocks of a stage's section: question, answer, parts, note.

    Where most times are unstable the answer stands alone with a link to all rows, and with the user's own.
    """
    answer = f"**{Markdown.escape(told.section.answer)}**" if told.section else _no_figures(told)
    head = [f"## {Markdown.escape(told.stage.question)}", answer]
    times = known(told.rows, "median_ms")
    unstable = int((times["status"] == "unstable").sum())
    if len(times) and unstable >= MOST_UNSTABLE * len(times):
        own_parts = [part_markdown(told.stage.name, part) for part in told.parts if part.name in own.PARTS]
        return [*head, *own_parts, _mostly_noise(told, unstable, len(times))]
    return [*head, *(part_markdown(told.stage.name, part) for part in told.parts), told.note]


def _mostly_noise(told: Told, unstable: int, times: int) -> str:
    return say(
        "{unstable} of {times} times are unstable here: a table of them would show noise. All rows: {links}.",
        unstable=count(unstable),
        times=count(times),
        links=row_links(told),
    )


def row_links(told: Told) -> Markdown:
    """Return links to the tables with all rows of a stage."""
    return Markdown(", ").join(
        say("[{name}](../results/{stage}/{name}.csv)", name=name, stage=told.stage.name) for name in told.tables
    )


def part_markdown(stage: str, part: Part) -> str:
    """Return a table or a chart of a stage as Markdown."""
    return image(stage, part) if isinstance(part, Chart) else part.markdown()


def image(stage: str, chart: Chart) -> str:
    """Return the link to a chart's drawing, with its title for those who do not see it."""
    title = str(Markdown.escape(chart.title)).replace("[", "&#91;")  # one without its partner would end the image
    return f"![{title}](figures/{stage}/{chart.name}.svg)"


def _no_figures(told: Told) -> str:
    outcomes = told.rows["status"].value_counts()
    reason = told.rows["reason"].dropna()
    words = ", ".join(f"{count(number)} {outcome}" for outcome, number in outcomes.items())
    return say("No figures: {words}. {reason}", words=words, reason=reason.iloc[0] if len(reason) else "")


def _trust_line(cells: pd.DataFrame, frames: Mapping[str, pd.DataFrame]) -> str:
    by_stage = facts.by_stage(cells, frames)
    lacking = len(cells) - by_stage["with_figures"].sum()
    return say(
        "{cells} cells, {times} times, {unstable} of them unstable (`~`), {lacking} cells without figures. "
        "[How far to trust it](#how-far-to-trust-it).",
        cells=count(len(cells)),
        times=count(by_stage["times"].sum()),
        unstable=count(by_stage["unstable"].sum()),
        lacking=count(lacking),
    )


def _trusted(told: Sequence[Told]) -> list[str]:
    return [each.section.trust for each in told if each.section and each.section.trust]


def _alarms(cells: pd.DataFrame, sections: Sequence[Told]) -> list[str]:
    """Return what a reader must see first: failed cells, cells measured beside other work, and what stages warn of."""
    failed = cells[cells["status"] == "failed"]
    columns: Columns = [
        ("stage", "stage", text),
        ("cell", "cell", code),
        ("how it ended", "reason", code),
        ("its log", "log", code),
    ]
    caption = "Failed, so missing here. The same command tries again:"
    busy = facts.busy(cells).groupby("stage", sort=False).size().rename("cells").reset_index()
    told = "Measured while other processes kept more than half of the cores busy. Do not trust these times:"
    tables = [
        Table("failed", caption, failed, columns),
        Table("busy", told, busy, [("stage", "stage", text), ("cells", "cells", count)]),
        *(table for each in sections if each.section for table in each.section.alarms),
    ]
    return [table.markdown() for table in tables if len(table.rows)]


def _trust(asked: Asked, cells: pd.DataFrame, told: Sequence[Told], frames: Mapping[str, pd.DataFrame]) -> list[str]:
    by_stage = facts.by_stage(cells, frames)
    by_stage = by_stage.assign(
        rows=by_stage["stage"].map({each.stage.name: row_links(each) for each in told}),
        older=by_stage["stage"].map(facts.changed_since(cells, asked.outdated)),
    )
    stages: Columns = [
        ("stage", "stage", text),
        ("cells", "cells", count),
        ("with figures", "with_figures", count),
        ("times", "times", count),
        ("unstable", "unstable", count),
        ("most repeats", "repeats", count),
        ("std between repeats", "typical_pct", percent),
        ("furthest two", "most_pct", percent),
        ("at power limit", "capped", count),
        ("by code changed since", "older", count),
        ("all rows", "rows", text),
    ]
    lacking: Columns = [
        ("stage", "stage", text),
        ("outcome", "status", text),
        ("cells", "cells", count),
        ("reason", "reason", text),
        ("example", "example", code),
    ]
    missing: Columns = [
        ("stage", "stage", text),
        ("cells", "cells", count),
        ("what they share", "shared", code),
        ("command", "command", code),
    ]
    tables = [
        Table(
            "stages",
            "By stage; repeats are compared by whole steps where there are any:",
            by_stage,
            filled(by_stage, stages),
            True,
        ),
        Table("lacking", "Cells without figures:", facts.without_figures(cells), lacking),
        Table(
            "missing",
            f"Not measured yet, although the scale {asked.scale} asks for it:",
            facts.missing(asked.missing),
            missing,
        ),
    ]
    return [
        f"## {TRUST}",
        unwrapped(RULES.read_text(encoding="utf-8").strip()),
        *(table.markdown() for table in tables if len(table.rows)),
    ]


def _reproduce(asked: Asked, cells: pd.DataFrame) -> list[str]:
    words = ["snakemake", "--cores", "1", "reports/writeup.md", *(["--config", *asked.config] if asked.config else [])]
    commits = cells.sort_values("started_at")["commit"].dropna().astype(str).unique()
    return [
        "## Reproduce",
        say(
            ("{command} in a clone at commit {last}. " if len(commits) < 2 else SEVERAL_COMMITS) + EVERY_RECORD,
            command=code(shlex.join(words)),
            last=commits[-1] if len(commits) else "unknown",
            commits=count(len(commits)),
            facts=Markdown("; ").join(
                say("{what}: {words}", what=each["what"], words=each["is"])
                for each in facts.machine(cells).to_dict("records")
            ),
        ),
    ]
