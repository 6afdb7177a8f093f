"""Escape text for a Markdown page, because records may hold anything; text marked as Markdown is left as it is."""

import re
from typing import Any

from markupsafe import Markup

from pipeline.errors import printable

# Characters that could be markup where they stand. All others stay, so the text of an honest run does not change.
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
# Renderers also link bare addresses, even if one of their characters is written as a reference.
_ADDRESS = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)|(?<=@)(?=\w)", re.IGNORECASE)
_ZERO_WIDTH_SPACE = "\u200b"
# Parts of Markdown that a terminal shows in another way: code spans stay, all others are dropped or decoded.
_TO_PLAIN = re.compile(rf"(?P<code>`[^`]*`)|&\#(?P<character>\d+);|\*\*|\\(?=\n)|{_ZERO_WIDTH_SPACE}")
# Line breaks, and runs of spaces at either end, which would make a code block or a line break.
_LINE_BREAKS = re.compile(r"\s*[^\S ]\s*|^ {4,}| {2,}$")


class Markdown(Markup):
    """Text that is Markdown already; its `+`, `join` and `format` escape anything that is not.

    Jinja leaves it as it is, because it has the interface of Markup.
    """

    __slots__ = ()

    @classmethod
    def escape(cls, text: Any) -> "Markdown":
        """Return text as Markdown that shows exactly its characters, anywhere on a line, in a table cell or in HTML.

        It uses character references, because backslashes mean nothing inside HTML.
        """
        if hasattr(text, "__html__"):
            return cls(text)
        plain = one_line(str(text))
        return cls(_ADDRESS.sub(_ZERO_WIDTH_SPACE, _MARKUP.sub(_references, plain)))


def code(text: str) -> Markdown:
    """Write text as a code span, which works only outside HTML; as text if a span in a table cell cannot hold it."""
    plain = one_line(text)
    return Markdown.escape(plain) if re.search(r"[`|]|^\s*$", plain) else Markdown(f"`{plain}`")


def plain(text: Markdown) -> str:
    """Return Markdown as text for a terminal: without escapes, bold and hard line breaks."""
    # Escaped text has no backtick and no asterisk: those in Markdown are markup. Code spans have no escapes.
    return _TO_PLAIN.sub(_plain_part, text)


def unwrapped(text: str) -> str:
    """Return Markdown with each paragraph on one line; lines of tables, lists and code stay."""
    return re.sub(r"(?<=[^\n])(?<!  )\n(?![\n|#> ]|[-*] |\d+[.)] |```|\[\[|$)", " ", text)


def anchor(heading: str) -> str:
    """Return the anchor that Markdown renderers make of a heading: lower case, no punctuation, spaces to hyphens."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def one_line(text: str) -> str:
    """Return text as one line of visible characters: spaces for line breaks, escapes for invisible characters."""
    return printable(_LINE_BREAKS.sub(" ", text))


def _references(match: re.Match[str]) -> str:
    return "".join(character if character == " " else f"&#{ord(character)};" for character in match[0])


def _plain_part(match: re.Match[str]) -> str:
    return chr(int(match["character"])) if match["character"] else match["code"] or ""
