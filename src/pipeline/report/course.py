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
the table names. The course's xl of 2026 is 2.7B here, which with SwiGLU's three matrices has more parameters than its
name says.

`~` marks an unstable time. A ratio stands with its 95% interval. *Faster* or *slower*: the interval excludes 1 and the
ratio is off by 1% or more; *same*: the interval lies within 2% of 1; *undecided*: anything else, and whatever rests on
an unstable time. So a large ratio of an unstable time stays undecided. *Exposed* communication is the time of a step in
which a rank communicates and computes nothing. [The write-up](writeup.md) says how all was measured."""
NOT_HERE = "*Not measured here: `snakemake results/{stage}/cells.csv` measures what this scale has of it.*"


def page(told: Sequence[Told]) -> Markdown:
    """Return the page as Markdown."""
    found = ["\n\n".join(map(unwrapped, HEAD.split("\n\n")))]
    for each in told:
        file = each.stage.folder / "course.md"
        if file.is_file():
            heading, first, rest = file.read_text(encoding="utf-8").strip().split("\n\n", 2)
            first = f"{first}\nAll rows: {row_links(each)}."
            found.append(filled("\n\n".join([heading, first, rest]), each.stage.name, each.every))
    # Tables are many, so that headings stand right above their text.
    return Markdown(re.sub(r"(?<=\n)(### .*\n)\n", r"\1", "\n\n".join(found)) + "\n")


def filled(text: str, stage: str, parts: Mapping[str, Part]) -> str:
    """Put parts in the places of a text; one that was not measured is told to be so.

    A paragraph with a place right below it, without an empty line, is about that part alone: without it it is left out.
    """
    told: list[str] = []
    for block in re.split(r"\n{2,}", text):
        words, names = PLACE.sub("", block).strip("\n"), PLACE.findall(block)
        found = blocks(stage, [parts[name] for name in names if name in parts])
        told += [unwrapped(words)] if words and (found or not names) else []
        told += found or ([NOT_HERE.format(stage=stage)] if names else [])
    # Of several parts in a row that lack, one line tells.
    return "\n\n".join(block for block, before in zip(told, [None, *told], strict=False) if block != before)
