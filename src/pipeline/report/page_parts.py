"""What a section tells, as data: an answer, figures, short tables, what to do, answers to the assignment's problems."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Drawing

from pipeline.report.figures import save
from pipeline.report.markup import Markdown
from pipeline.report.section import counted
from pipeline.report.tables import markdown
from pipeline.report.written_section import WrittenSection

MOST_TABLE_ROWS = 12
MOST_ACTIONS = 8


def say(sentence: str, **values: Any) -> Markdown:
    """Fill a sentence that is Markdown with values, which are escaped unless they are Markdown too."""
    return Markdown(sentence).format(**{name: Markdown.escape(value) for name, value in values.items()})


@dataclass(frozen=True)
class Figure:
    """A drawing, whose title says what is seen; `name` is its file's."""

    name: str
    title: str
    drawing: Drawing


@dataclass(frozen=True)
class Table:
    """A short table of text, and a sentence above it. The page shows its first MOST_TABLE_ROWS rows."""

    title: str
    cells: pd.DataFrame


@dataclass(frozen=True)
class Action:
    """Something to do on this machine, with its cause and its figure; the first screen lists them by `rank`.

    rank: 1 concerns every training run, 5 a special case. Of several stages that advise on one topic, such as
    `attention`, the first screen shows the first by rank. covers: further topics that this advice settles.
    """

    rank: int
    what: str
    why: str
    topic: str = ""
    covers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Problem:
    """The answer to a problem of the assignment, in two sentences at most."""

    name: str
    answer: str


@dataclass(frozen=True)
class Section:
    """What one stage tells.

    All text is escaped but what is Markdown. title: a plain question; exercise: the assignment's name for it; answer:
    one sentence, or two, with the figures that answer it; parts: paragraphs, figures and tables in reading order;
    method: how it was measured, in two lines.
    headline: the first screen's table, and its figure, where this stage has them. models: that table as numbers, as
    summary.schema.json declares them. users_own: the rows of the first screen's table of the user's own.
    """

    title: str
    exercise: str
    answer: str
    parts: Sequence[str | Figure | Table] = ()
    method: str = ""
    actions: Sequence[Action] = ()
    problems: Sequence[Problem] = ()
    headline: Sequence[str | Figure | Table] = ()
    models: Sequence[Mapping[str, Any]] = ()
    users_own: Sequence[Mapping[str, str]] = ()


def write(
    section: Section, stage: str, tables: Sequence[str], folder: Path, trust: Mapping[str, Any]
) -> WrittenSection:
    """Draw a section's figures into a folder and write its Markdown.

    tables: the CSV files that have all rows, as paths below the results folder.
    """
    for part in (*section.headline, *section.parts):
        if isinstance(part, Figure):
            save(part.drawing, folder / f"{part.name}.svg")
    links = Markdown(", ").join(say("[{name}](../results/{path})", name=Path(path).stem, path=path) for path in tables)
    bodies = [_markdown(part, stage) for part in section.parts]
    ends = [Markdown.escape(section.method), *([say("All rows: {links}.", links=links)] if tables else [])]
    exercise = f" ({section.exercise})" if section.exercise else ""
    answer = f"**{Markdown.escape(section.answer)}**"
    blocks = [f"## {section.title}{exercise}", answer, *bodies, " ".join(filter(None, ends))]
    return WrittenSection(
        stage,
        "\n\n".join(filter(None, blocks)) + "\n",
        "\n\n".join(_markdown(part, stage) for part in section.headline),
        [_escaped(action, "what", "why") for action in section.actions],
        [_escaped(problem, "answer") for problem in section.problems],
        f"{section.title}{exercise}",
        dict(trust),
        list(section.models),
        list(section.users_own),
    )


def _escaped(part: Action | Problem, *names: str) -> dict[str, Any]:
    return asdict(part) | {name: Markdown.escape(getattr(part, name)) for name in names}


def _markdown(part: str | Figure | Table, stage: str) -> str:
    if isinstance(part, Figure):
        title = str(Markdown.escape(part.title)).replace("[", "&#91;")  # one without its partner would end the image
        return f"![{title}](figures/{stage}/{part.name}.svg)"
    if isinstance(part, Table):
        left_out = len(part.cells) - MOST_TABLE_ROWS
        more = f"\n\n… and {counted(left_out, 'row')} more." if left_out > 0 else ""
        return f"{Markdown.escape(part.title)}\n\n{markdown(part.cells.head(MOST_TABLE_ROWS))}{more}"
    return Markdown.escape(part)
