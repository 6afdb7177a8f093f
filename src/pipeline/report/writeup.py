"""Write the write-up: first screen, one section per stage, how far to trust it, how to reproduce it."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from pipeline.report import facts, own
from pipeline.report.asked import Asked
from pipeline.report.chart import Chart
from pipeline.report.formats import code
from pipeline.report.frame import known, shares_a_cpu
from pipeline.report.markup import Markdown, unwrapped
from pipeline.report.section import Part, Told, say
from pipeline.report.table import Table, filled, named
from pipeline.report.versus import FASTER, UNDECIDED

MOST_CHANGES = 8
# An undecided change that seems to gain less is not shown.
WORTH_A_LOOK = 1.05
# Tables of a stage of whose times so large a share is unstable would show noise.
MOST_UNSTABLE = 0.5
TRUST_LINE = (
    "{cells:count} cells gave {times:count} times, {unstable:count} of them unstable (`~`); {lacking:count} cells have "
    "no figures. [How far to trust it](#how-far-to-trust-it)."
)
MOSTLY_NOISE = "{unstable:count} of {times:count} times are unstable here: a table of them would show noise."
ON_ONE_CPU = (
    "The ranks share one CPU here, so these times say little of ranks with a GPU each. [course.md](course.md) has "
    "their tables."
)
SEVERAL_COMMITS = (
    "{command}. The records come from {commits:count} commits, the last of them {last}; each names its own. "
)
EVERY_RECORD = (
    "Each record holds the command of its cell, `results/<stage>/cells.csv` all of them. Measured on and with: {facts}."
)
WHAT_TO_CHANGE = (
    "What to change. Each row is measured by itself, and gains do not multiply. With one repeat the interval is that "
    "of a single process:"
)
BUSY = "Measured while other processes kept more than half of the cores busy. Do not trust these times:"
# What words such as unstable and faster mean: written by hand, true of every run.
RULES = Path(__file__).parent / "trust.md"


def writeup(asked: Asked, cells: pd.DataFrame, told: Sequence[Told]) -> Markdown:
    """Return the write-up as Markdown."""
    by_stage = facts.by_stage(cells, {each.stage.name: each.rows for each in told})
    found = [
        *first_screen(cells, told),
        " ".join([_trust_line(cells, by_stage), *(each.section.trust for each in told if each.section.trust)]),
        *(block for each in told for block in section(each)),
        "## How far to trust it",
        unwrapped(RULES.read_text(encoding="utf-8").strip()),
        *blocks("", _trust_tables(asked, cells, by_stage)),
        "## Reproduce",
        _reproduce(asked, cells),
    ]
    return Markdown("\n\n".join(block for block in found if block) + "\n")


def first_screen(cells: pd.DataFrame, told: Sequence[Told]) -> list[str]:
    """Return the first screen's blocks: a line, a chart, the models, what to change, what to know first."""
    machines = " and ".join(sorted(cells["machine"].unique()))
    found: list[str] = [say("# {machines}: how fast it trains language models", machines=machines)]
    for each in told:
        if screen := each.section.first_screen:
            found += [f"**{Markdown.escape(screen.line)}**", *blocks(each.stage.name, [screen.chart, screen.models])]
    rows = changes(told)
    heads = {"where": "measured on", "from": "from: step, memory", "to": "to: step, memory"}
    names = named(rows, "change gain:text verdict from to where repeats", **heads)
    return found + blocks(
        "", [own.first_table(told), Table("changes", WHAT_TO_CHANGE, rows, names), *_alarms(cells, told)]
    )


def changes(told: Sequence[Told]) -> pd.DataFrame:
    """Return the changes of the first screen: those that are faster, largest gain first, then undecided ones.

    Of the same change by several stages the first stands.
    """
    judged = ["ratio", "low", "high", "verdict", "repeats", "gain"]
    lines = [
        {"change": change.what, "where": change.where, "from": change.before, "to": change.after}
        | {name: change.judged[name] for name in judged}
        for each in told
        for change in each.section.changes
    ]
    rows = pd.DataFrame(lines, columns=["change", "where", "from", "to", *judged])
    is_faster, is_open = rows["verdict"] == FASTER, rows["verdict"] == UNDECIDED
    rows = rows[is_faster | (is_open & (rows["ratio"] >= WORTH_A_LOOK))].drop_duplicates("change")
    # Of the two words the alphabet has "faster" first.
    return rows.sort_values(["verdict", "ratio"], ascending=[True, False]).head(MOST_CHANGES)


def section(told: Told) -> list[str]:
    """Return the blocks of a stage's section: question, answer, parts, note.

    Without figures the reason stands alone. Where times say little, why they do stands in place of parts and note; only
    the user's own are shown.
    """
    question, parts, note = f"## {Markdown.escape(told.stage.question)}", told.parts, told.note
    if not note:
        return [question, told.section.answer, *blocks(told.stage.name, parts)]
    if words := _says_little(told):
        parts, note = [part for part in parts if part.name in own.PARTS], words
    answer = say("**{answer}** All rows: {links}.", answer=told.section.answer, links=row_links(told))
    return [question, answer, *blocks(told.stage.name, parts), note]


def _says_little(told: Told) -> str:
    """Return why a stage's times say little, empty where they do: most are unstable, or ranks shared one CPU."""
    if shares_a_cpu(told.rows):
        return ON_ONE_CPU
    times = known(told.rows, "median_ms")
    unstable = int((times["status"] == "unstable").sum())
    mostly = len(times) and unstable >= MOST_UNSTABLE * len(times)
    return say(MOSTLY_NOISE, unstable=unstable, times=len(times)) if mostly else ""


def row_links(told: Told) -> Markdown:
    """Return links to the tables with all rows of a stage."""
    tables = told.rows[told.stage.split_axis].drop_duplicates().astype(str)
    link = "[{name}](../results/{stage}/{name}.csv)"
    return Markdown(", ").join(say(link, name=name, stage=told.stage.name) for name in tables)


def blocks(stage: str, parts: Iterable[Part]) -> list[str]:
    """Return what would show something of a stage's tables and charts, as Markdown."""
    shown = [part for part in parts if not part.is_empty]
    return [image(stage, part) if isinstance(part, Chart) else part.markdown() for part in shown]


def image(stage: str, chart: Chart) -> str:
    """Return the link to a chart's drawing, with its title for those who do not see it."""
    title = str(Markdown.escape(chart.title)).replace("[", "&#91;")  # one without its partner would end the image
    return f"![{title}](figures/{stage}/{chart.name}.svg)"


def _trust_line(cells: pd.DataFrame, by_stage: pd.DataFrame) -> str:
    sums = by_stage[["with_figures", "times", "unstable"]].sum()
    return say(TRUST_LINE, cells=len(cells), lacking=len(cells) - sums["with_figures"], **sums)


def _alarms(cells: pd.DataFrame, told: Sequence[Told]) -> list[Table]:
    """Return what a reader must see first: failed cells, cells measured beside other work, and what stages warn of."""
    failed = cells[cells["status"] == "failed"]
    busy = cells[cells["host_busy"].astype(str) == "True"].groupby("stage", sort=False).size()
    busy = busy.rename("cells").reset_index()
    ended = named(failed, "stage cell:code reason:code log:code", reason="how it ended", log="its log")
    return [
        Table("failed", "Failed, so missing here. The same command tries again:", failed, ended),
        Table("busy", BUSY, busy, named(busy, "stage cells")),
        *(table for each in told for table in each.section.alarms),
    ]


def _trust_tables(asked: Asked, cells: pd.DataFrame, by_stage: pd.DataFrame) -> list[Table]:
    older = by_stage["stage"].map(facts.changed_since(cells, asked.outdated))
    by_stage = by_stage.assign(by_code_changed_since=older)[(by_stage["most_repeats"] > 1) | older.notna()]
    apart = "std_between_repeats:percent furthest_two:percent"
    heads = {"furthest_two": "largest difference of two repeats"}
    names = named(by_stage, f"stage cells most_repeats {apart} by_code_changed_since", **heads)
    lacking, missing = facts.without_figures(cells), facts.missing(asked.missing)
    spread = "How far repeats lie apart, by their whole steps where there are any:"
    absent = f"Not measured yet, although the scale {asked.scale} asks for it:"
    of_lacking = named(lacking, "outcome stage cells reason example:code")
    return [
        Table("stages", spread, by_stage, filled(by_stage, names), all_rows=True),
        Table("lacking", "Cells without figures:", lacking, of_lacking),
        Table("missing", absent, missing, named(missing, "stage cells what_they_share:code command:code")),
    ]


def _reproduce(asked: Asked, cells: pd.DataFrame) -> str:
    words = ["snakemake", "--cores", "1", "reports/writeup.md", *(["--config", *asked.config] if asked.config else [])]
    commits = cells.sort_values("started_at")["commit"].dropna().astype(str).unique()
    machine = [say("{what}: {words}", what=what, words=words) for what, words in facts.machine(cells).items()]
    return say(
        ("{command} in a clone at commit {last}. " if len(commits) < 2 else SEVERAL_COMMITS) + EVERY_RECORD,
        command=code(shlex.join(words)),
        last=commits[-1] if len(commits) else "unknown",
        commits=len(commits),
        facts=Markdown("; ").join(machine),
    )
