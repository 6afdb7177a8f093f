"""Write the write-up: first screen, one section per stage, how far to trust it, how to reproduce it."""

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline.report import facts, users
from pipeline.report.chart import Chart
from pipeline.report.formats import code, count
from pipeline.report.frame import having, shares_a_cpu
from pipeline.report.markup import Markdown
from pipeline.report.page_request import PageRequest
from pipeline.report.section import Part, StageReport
from pipeline.report.table import Table
from pipeline.report.versus import FASTER, UNDECIDED
from pipeline.report.words import Words

# The note defines words such as unstable and faster; it is written by hand and true of every run.
WORDS = Words(__file__)
MOST_CHANGES = 8
# An undecided change with a smaller ratio is not shown.
LEAST_SHOWN_RATIO = 1.05
# If this share of a stage's times is unstable, its tables would show noise.
MOST_UNSTABLE = 0.5


def writeup(request: PageRequest, cells: pd.DataFrame, stage_reports: Sequence[StageReport]) -> Markdown:
    """Return the write-up as Markdown; values in its template are escaped unless they are Markdown already."""
    frames = {each.stage.name: each.rows for each in stage_reports}
    summaries = facts.stage_summaries(cells, frames)
    program = ["snakemake"] if request.in_clone else ["python", "-m", "pipeline", "run"]
    words = [*program, "--cores", "1", "reports/writeup.md", *(["--config", *request.config] if request.config else [])]
    loader, escape = FileSystemLoader(Path(__file__).parent), Markdown.escape
    jinja = Environment(loader=loader, undefined=StrictUndefined, finalize=escape, trim_blocks=True, lstrip_blocks=True)
    jinja.filters["count"] = count
    text = jinja.get_template("writeup.md.j2").render(
        machines=" and ".join(sorted(cells["machine"].unique())),
        stage_reports=stage_reports,
        shown=lambda parts, stage="": Markdown("\n\n".join(blocks(stage, parts))),
        first_tables=[
            users.first_table(stage_reports),
            WORDS.table("changes", changes(stage_reports), "change gain:text verdict from to where repeats"),
            *_alarms(cells, stage_reports),
        ],
        cells=len(cells),
        gpus=len(facts.gpus(cells)),
        **summaries[["with_values", "times", "unstable"]].sum(),
        shares_a_cpu=lambda each: shares_a_cpu(each.rows),
        noise=_noise,
        users_parts=lambda each: [part for part in each.parts if part.name in users.PARTS],
        row_links=row_links,
        rules=WORDS.note,
        spread=WORDS.table(
            "stages",
            summaries[summaries["most_repeats"] > 1],
            "stage most_repeats std_between_repeats:percent furthest_two:percent",
        ),
        side_by_side=facts.side_by_side(cells),
        vocabularies=facts.vocabularies(frames),
        lacking=facts.without_values(cells).to_dict("records"),
        scale=request.scale,
        missing=facts.missing(request.missing),
        changed_since=facts.changed_since(cells, request.outdated),
        command=code(shlex.join(words)),
        measures_a_stage=code(shlex.join([*program, "results/STAGE/cells.csv"])),
        in_clone=request.in_clone,
        commits=list(cells.sort_values("started_at")["commit"].dropna().astype(str).unique()),
        mixed=facts.of_several_commits(cells),
        dirty=facts.count_by_stage(cells, cells["commit"].astype(str).str.endswith("+dirty")),
        machine=facts.machine(cells),
    )
    return Markdown(re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")


def changes(stage_reports: Sequence[StageReport]) -> pd.DataFrame:
    """Return the changes of the first screen: faster ones, largest gain first, then undecided ones.

    If several stages have the same change, the first is kept.
    """
    judged = ["ratio", "low", "high", "verdict", "repeats", "gain"]
    lines = [
        {"change": change.what, "where": change.where, "from": change.before, "to": change.after}
        | {name: change.judged[name] for name in judged}
        for each in stage_reports
        for change in each.section.changes
    ]
    rows = pd.DataFrame(lines, columns=["change", "where", "from", "to", *judged])
    is_faster, is_undecided = rows["verdict"] == FASTER, rows["verdict"] == UNDECIDED
    rows = rows[is_faster | (is_undecided & (rows["ratio"] >= LEAST_SHOWN_RATIO))].drop_duplicates("change")
    # In the alphabet, "faster" comes before "undecided".
    return rows.sort_values(["verdict", "ratio"], ascending=[True, False]).head(MOST_CHANGES)


def _noise(report: StageReport) -> tuple[int, int] | None:
    """Return how many times of a stage are unstable, and how many it has; None below the share MOST_UNSTABLE."""
    times = having(report.rows, "median_ms")
    unstable = int((times["status"] == "unstable").sum())
    return (unstable, len(times)) if len(times) and unstable >= MOST_UNSTABLE * len(times) else None


def row_links(report: StageReport) -> Markdown:
    """Return links to the tables with all rows of a stage."""
    tables = report.rows[report.stage.split_axis].drop_duplicates().astype(str)
    return Markdown(", ").join(WORDS.say("row_link", name=name, stage=report.stage.name) for name in tables)


def blocks(stage: str, parts: Iterable[Part]) -> list[str]:
    """Return those of a stage's tables and charts that are not empty, as Markdown."""
    shown = [part for part in parts if not part.is_empty]
    return [image(stage, part) if isinstance(part, Chart) else part.markdown() for part in shown]


def image(stage: str, chart: Chart) -> str:
    """Return the link to a chart's drawing, with its title as alt text."""
    title = str(Markdown.escape(chart.title)).replace("[", "&#91;")  # an unmatched bracket would break the link
    return f"![{title}](figures/{stage}/{chart.name}.svg)"


def _alarms(cells: pd.DataFrame, stage_reports: Sequence[StageReport]) -> list[Table]:
    """Return what a reader must see first: failed cells, cells measured on a busy host, and alarms of stages."""
    failed = cells[cells["status"] == "failed"]
    busy = cells[cells["host_busy"].astype(str) == "True"].groupby("stage", sort=False).size()
    busy = busy.rename("cells").reset_index()
    return [
        WORDS.table("failed", failed, "stage cell:code reason:code log:code", all_rows=False),
        WORDS.table("busy", busy, "stage cells"),
        *(table for each in stage_reports for table in each.section.alarms),
    ]
