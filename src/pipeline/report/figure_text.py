"""Dollars in the text of figures: Matplotlib takes what stands between two for a formula, and may fail on it."""

import re
from collections.abc import Callable

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

# The one formula that a figure may hold: the power of a number.
POWER = re.compile(r"(\$\d+\^(?:\d|\{-?\d+\})\$)|\$")


def take_dollars_as_they_are(figure: Figure) -> None:
    """Have every dollar of a finished figure drawn as a dollar: a GPU's name or a reason may hold any."""
    for text in figure.findobj(Text):
        text.set_text(_without_formulas(text.get_text()))
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        words = axis.get_major_formatter()  # gives ticks their text anew whenever they are drawn
        if isinstance(words, FuncFormatter):
            words.func = _before(_without_formulas, words.func)


def _before(last: Callable[[str], str], first: Callable[..., str]) -> Callable[..., str]:
    return lambda *arguments: last(first(*arguments))


def _without_formulas(text: str) -> str:
    return POWER.sub(lambda found: found[1] or r"\$", text)
