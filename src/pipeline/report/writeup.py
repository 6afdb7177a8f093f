"""Write the write-up: first screen, one section per stage, how far to trust it, how to reproduce it."""

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline.report import facts, own
from pipeline.report.asked import Asked
from pipeline.report.chart import Chart
from pipeline.report.formats import code, count
from pipeline.report.frame import having, shares_a_cpu
from pipeline.report.markup import Markdown
from pipeline.report.section import Part, Told
from pipeline.report.table import Table
from pipeline.report.versus import FASTER, UNDECIDED
from pipeline.report.words import Words

# The note says what words such as unstable and faster mean: written by hand, true of every run.
WORDS = Words(__file__)
MOST_CHANGES = 8
# An undecided change that seems to gain less is not shown.
WORTH_A_LOOK = 1.05
# Tables of a stage of whose times so large a share is unstable would show noise.
MOST_UNSTABLE = 0.5


def writeup(asked: Asked, cells: pd.DataFrame, told: Sequence[Told]) -> Markdown:
    """Return the write-up as Markdown; what its template shows is escaped unless it is Markdown already."""
    frames = {each.stage.name: each.rows for each in told}
    by_stage = facts.by_stage(cells, frames)
    program = ["snakemake"] if asked.in_clone else ["python", "-m", "pipeline", "run"]
    words = [*program, "--cores", "1", "reports/writeup.md", *(["--config", *asked.config] if asked.config else [])]
    loader, escape = FileSystemLoader(Path(__file__).parent), Markdown.escape
    pages = Environment(loader=loader, undefined=StrictUndefined, finalize=escape, trim_blocks=True, lstrip_blocks=True)
    pages.filters["count"] = count
    text = pages.get_template("writeup.md.j2").render(
        machines=" and ".join(sorted(cells["machine"].unique())),
        told=told,
        shown=lambda parts, stage="": Markdown("\n\n".join(blocks(stage, parts))),
        first_tables=[
            own.first_table(told),
            WORDS.table("changes", changes(told), "change gain:text verdict from to where repeats"),
            *_alarms(cells, told),
        ],
        cells=len(cells),
        gpus=len(facts.gpus(cells)),
        **by_stage[["with_values", "times", "unstable"]].sum(),
        shares_a_cpu=lambda each: shares_a_cpu(each.rows),
        noise=_noise,
        own=lambda each: [part for part in each.parts if part.name in own.PARTS],
        row_links=row_links,
        rules=WORDS.note,
        spread=WORDS.table(
            "stages",
            by_stage[by_stage["most_repeats"] > 1],
            "stage most_repeats std_between_repeats:percent furthest_two:percent",
        ),
        side_by_side=facts.side_by_side(cells),
        vocabularies=facts.vocabularies(frames),
        lacking=facts.without_values(cells).to_dict("records"),
        scale=asked.scale,
        missing=facts.missing(asked.missing),
        changed_since=facts.changed_since(cells, asked.outdated),
        command=code(shlex.join(words)),
        measures_a_stage=code(shlex.join([*program, "results/STAGE/cells.csv"])),
        in_clone=asked.in_clone,
        commits=list(cells.sort_values("started_at")["commit"].dropna().astype(str).unique()),
        mixed=facts.of_several_commits(cells),
        dirty=facts.by_stages(cells, cells["commit"].astype(str).str.endswith("+dirty")),
        machine=facts.machine(cells),
    )
    return Markdown(re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")


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


def _noise(told: Told) -> tuple[int, int] | None:
    """Return how many of how many times of a stage are unstable, where most are."""
    times = having(told.rows, "median_ms")
    unstable = int((times["status"] == "unstable").sum())
    return (unstable, len(times)) if len(times) and unstable >= MOST_UNSTABLE * len(times) else None


def row_links(told: Told) -> Markdown:
    """Return links to the tables with all rows of a stage."""
    tables = told.rows[told.stage.split_axis].drop_duplicates().astype(str)
    return Markdown(", ").join(WORDS.say("row_link", name=name, stage=told.stage.name) for name in tables)


def blocks(stage: str, parts: Iterable[Part]) -> list[str]:
    """Return what would show something of a stage's tables and charts, as Markdown."""
    shown = [part for part in parts if not part.is_empty]
    return [image(stage, part) if isinstance(part, Chart) else part.markdown() for part in shown]


def image(stage: str, chart: Chart) -> str:
    """Return the link to a chart's drawing, with its title for those who do not see it."""
    title = str(Markdown.escape(chart.title)).replace("[", "&#91;")  # one without its partner would end the image
    return f"![{title}](figures/{stage}/{chart.name}.svg)"


def _alarms(cells: pd.DataFrame, told: Sequence[Told]) -> list[Table]:
    """Return what a reader must see first: failed cells, cells measured beside other work, and what stages warn of."""
    failed = cells[cells["status"] == "failed"]
    busy = cells[cells["host_busy"].astype(str) == "True"].groupby("stage", sort=False).size()
    busy = busy.rename("cells").reset_index()
    return [
        WORDS.table("failed", failed, "stage cell:code reason:code log:code", all_rows=False),
        WORDS.table("busy", busy, "stage cells"),
        *(table for each in told for table in each.section.alarms),
    ]
