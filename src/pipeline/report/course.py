"""Write the page of the course's problems, each with the table or drawing that it asks for.

A stage's `course.md` is written by hand: a heading a problem, and lines `[[name]]`, in whose place the part of its
section with this name is put. What is the student's own stands below its first paragraph. The order is that of the
stages.
"""

import re
from collections.abc import Mapping, Sequence

from pipeline.report import own
from pipeline.report.markup import Markdown, unwrapped
from pipeline.report.section import Part, Told
from pipeline.report.words import Words
from pipeline.report.writeup import blocks, row_links

PLACE = re.compile(r"^\[\[([a-z0-9_]+)\]\]$", re.MULTILINE)
WORDS = Words(__file__)


def page(told: Sequence[Told]) -> Markdown:
    """Return the page as Markdown."""
    found: list[str] = [WORDS.note]
    for each in told:
        file = each.stage.folder / "course.md"
        if file.is_file():
            heading, first, rest = file.read_text(encoding="utf-8").strip().split("\n\n", 2)
            first = f"{first}\nAll rows: {row_links(each)}."
            mine = [f"[[{own.PARTS[0]}]]"] if own.PARTS[0] in each.every else []
            found.append(filled("\n\n".join([heading, first, *mine, rest]), each.stage.name, each.every))
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
        told += found or ([WORDS.say("not_here", stage=stage)] if names else [])
    # Of several parts in a row that lack, one line tells.
    return "\n\n".join(block for block, before in zip(told, [None, *told], strict=False) if block != before)
