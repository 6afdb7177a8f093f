"""Write the page of the course's problems, each with the table or drawing that it asks for.

A stage's `course.md` is written by hand: a heading per problem, and lines `[[name]]`, which are replaced by the part of
that name in the stage's section. The student's own results follow its first paragraph. Stages keep their order.
"""

import re
from collections.abc import Mapping, Sequence

from pipeline.report import users
from pipeline.report.markup import Markdown, unwrapped
from pipeline.report.section import Part, StageReport
from pipeline.report.words import Words
from pipeline.report.writeup import blocks, row_links

PLACE = re.compile(r"^\[\[([a-z0-9_]+)\]\]$", re.MULTILINE)
WORDS = Words(__file__)


def page(stage_reports: Sequence[StageReport]) -> Markdown:
    """Return the page as Markdown."""
    sections: list[str] = [WORDS.note]
    for report in stage_reports:
        file = report.stage.folder / "course.md"
        if file.is_file():
            heading, first, rest = file.read_text(encoding="utf-8").strip().split("\n\n", 2)
            first = f"{first}\nAll rows: {row_links(report)}."
            users_part = [f"[[{users.PARTS[0]}]]"] if users.PARTS[0] in report.all_parts else []
            sections.append(
                filled("\n\n".join([heading, first, *users_part, rest]), report.stage.name, report.all_parts)
            )
    # The page has many tables: save the empty line below each heading.
    return Markdown(re.sub(r"(?<=\n)(### .*\n)\n", r"\1", "\n\n".join(sections)) + "\n")


def filled(text: str, stage: str, parts: Mapping[str, Part]) -> str:
    """Replace the lines `[[name]]` of a text by parts, or by a line that says the part was not measured.

    A paragraph directly above such a line, without an empty line between, is about that part alone: if the part is
    missing, so is the paragraph.
    """
    written: list[str] = []
    for block in re.split(r"\n{2,}", text):
        words, names = PLACE.sub("", block).strip("\n"), PLACE.findall(block)
        shown = blocks(stage, [parts[name] for name in names if name in parts])
        written += [unwrapped(words)] if words and (shown or not names) else []
        written += shown or ([WORDS.say("not_here", stage=stage)] if names else [])
    # Several missing parts in a row share one line.
    return "\n\n".join(block for block, previous in zip(written, [None, *written], strict=False) if block != previous)
