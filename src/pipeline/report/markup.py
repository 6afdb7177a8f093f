"""Escape text for a Markdown page, for records may hold anything; what is marked as Markdown stays."""

import re
from typing import Any

from markupsafe import Markup

from pipeline.errors import printable

# What could be markup where it stands; all else, and so all that an honest run writes, stays as it is.
_MARKUP = re.compile(
    r"""
      [\\`*|$~]                   # escapes, code, emphasis, cells, formulas, strokes
    | <(?=[A-Za-z/!?]|$)          # tags, comments
    | &(?=\#?\w+;|$)              # character references
    | (?<!\w)_+ | _+(?!\w)        # emphasis, but not as in train_step
    | \](?=[(\[:]) | \[(?=\^)     # links, images, footnotes
    | ^\ *(?:\[                   # their definitions, boxes to tick
        | \#+ | > | (?:[-+=]+|:?-+:?|\d+[.)])(?=\s|$))    # headings, quotes, lists, lines
    """,
    re.VERBOSE,
)
# Renderers make links of bare addresses too, even where a character is written as a reference.
_ADDRESS = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)|(?<=@)(?=\w)", re.IGNORECASE)
_ZERO_WIDTH_SPACE = "\u200b"
# And runs of spaces at either end, which make a block of code or a line break.
_LINE_BREAKS = re.compile(r"\s*[^\S ]\s*|^ {4,}| {2,}$")


class Markdown(Markup):
    """Text that is Markdown already; `+`, `join` and `format` escape whatever else they are given.

    Jinja takes it as it is, for it has the interface of markup.
    """

    __slots__ = ()

    @classmethod
    def escape(cls, text: Any) -> "Markdown":
        """Return text as Markdown that shows just its characters, wherever on a line, in a cell or in HTML it stands.

        Character references and not backslashes, for these mean nothing inside of HTML.
        """
        if hasattr(text, "__html__"):
            return cls(text)
        plain = one_line(str(text))
        return cls(_ADDRESS.sub(_ZERO_WIDTH_SPACE, _MARKUP.sub(_references, plain)))


def code(text: str) -> Markdown:
    """Write text as a code span, which inside HTML is none; as text where it holds what a span in a cell cannot."""
    plain = one_line(text)
    return Markdown.escape(plain) if re.search(r"[`|]|^\s*$", plain) else Markdown(f"`{plain}`")


def unwrapped(text: str) -> str:
    """Return Markdown with each paragraph on one line, as pages have it; lines of tables, lists, code stay."""
    return re.sub(r"(?<=[^\n])(?<!  )\n(?![\n|#> ]|[-*] |\d+[.)] |```|\[\[|$)", " ", text)


def anchor(heading: str) -> str:
    """Return the anchor that Markdown renderers make of a heading: lower case, no punctuation, spaces to hyphens."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def one_line(text: str) -> str:
    """Return text as one line of characters that can be seen: spaces for line breaks, escapes for all else."""
    return printable(_LINE_BREAKS.sub(" ", text))


def _references(found: re.Match[str]) -> str:
    return "".join(character if character == " " else f"&#{ord(character)};" for character in found[0])
