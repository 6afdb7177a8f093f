"""Write the page of the course's problems, each with the table or drawing that it asks for.

A stage's `course.md` is written by hand: a heading a problem, and lines `[[name]]`, in whose place the part of its
section with this name is put. The order is that of the stages.
"""

import re
from collections.abc import Mapping, Sequence

from pipeline.report.markup import Markdown, unwrapped
from pipeline.report.section import Part, Told
from pipeline.report.writeup import blocks, row_links

PLACE = re.compile(r"^\[\[([a-z0-9_]+)\]\]$", re.MULTILINE)
HEAD = """\
# The course's problems, answered on this machine

Stanford's CS336, assignment 2 (systems), editions 2025 and 2026: each problem with the table or figure it asks for, and
why it comes out so. The words are written by hand and hold on any machine; the values are this one's. Tables show the
rows that answer a problem; the links lead to all. A cell with several values has them in the order that the line above
the table names, and `~` marks unstable times. The course's xl of 2026 is 2.7B here. [The write-up](writeup.md) says how
all was measured and how far to trust it."""
NOT_HERE = "*Not measured here: `snakemake results/{stage}/cells.csv` measures what this scale has of it.*"


def page(told: Sequence[Told]) -> Markdown:
    """Return the page as Markdown."""
    found = [unwrapped(HEAD)]
    for each in told:
        file = each.stage.folder / "course.md"
        if file.is_file():
            words = file.read_text(encoding="utf-8").strip()
            words = words.replace("\n\n", f"\n\n(All rows: {row_links(each)}.) ", 1)
            found.append(filled(words, each.stage.name, each.every))
    return Markdown("\n\n".join(found) + "\n")


def filled(text: str, stage: str, parts: Mapping[str, Part]) -> str:
    """Put parts in the places of a text; one that was not measured is told to be so.

    What stands right below a paragraph, without an empty line, goes on with it: a caption is its last sentence.
    """

    def part(place: re.Match[str]) -> str:
        found = [parts[place[1]]] if place[1] in parts else []
        return "".join(blocks(stage, found)) or NOT_HERE.format(stage=stage)

    return unwrapped(PLACE.sub(part, text))
