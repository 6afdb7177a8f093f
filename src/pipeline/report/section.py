"""A stage's section: a template filled with facts, and the words that comparisons of figures give."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline.report.markup import Markdown, code
from pipeline.report.tables import significant


def render(template_path: Path, facts: dict) -> Markdown:
    """Fill a Markdown template with facts; those that are not Markdown are escaped.

    Raises jinja2.UndefinedError for a fact that is missing and ValueError for one that is not a number.
    """
    environment = Environment(
        loader=FileSystemLoader(template_path.parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,  # what a macro returns is then taken as it is
        finalize=Markdown.escape,
    )
    environment.filters |= {word.__name__: word for word in (code, count, counted, duration, listing, number, percent)}
    text = environment.get_template(template_path.name).render(facts)
    # Sentences that were not printed leave their blank lines behind.
    return Markdown(re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")


def ms(value: float) -> str:
    """Write milliseconds: from a second on as seconds, below a tenth as microseconds."""
    if _finite(value) >= 1000:
        return f"{significant(value / 1000)} s"
    return f"{significant(value)} ms" if value >= 0.1 or value <= 0 else f"{significant(1000 * value)} µs"


def duration(seconds: float) -> str:
    """Write seconds: from two minutes on as minutes."""
    return f"{number(seconds / 60)} minutes" if seconds >= 120 else f"{number(seconds)} s"


def ratio(value: float) -> str:
    """Write a ratio: 1.41×."""
    return f"{significant(_finite(value))}×"


def percent(share: float) -> str:
    """Write a share of one as per cent, to two significant figures."""
    return f"{significant(100 * _finite(share), 2)}%"


def count(value: float) -> str:
    """Write a whole number with thousands separated."""
    return f"{_finite(value):,.0f}"


def counted(value: float, noun: str) -> str:
    """Write how many there are of something: `1 row`, `1,200 rows`."""
    return f"{count(value)} {noun}{'s' if value != 1 else ''}"


def number(value: float) -> str:
    """Write a bare number to three significant figures."""
    return significant(_finite(value))


def data_size(value: float) -> str:
    """Write bytes as kB, MB or GB, powers of ten."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if _finite(value) >= size:
            return f"{significant(value / size)} {unit}"
    return f"{significant(value / 1e3)} kB"


def mib(byte_count: float) -> str:
    """Write bytes as MiB, of 2^20 bytes."""
    return f"{significant(_finite(byte_count) / 2**20)} MiB"


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} has no place in a sentence")
    return value


def span(values: pd.Series, form: Callable[[float], str]) -> str:
    """Write the lowest and the highest of named values: `12.3 ms (small) to 456 ms (xl)`."""
    low, high = (form(values[name]) for name in (values.idxmin(), values.idxmax()))
    if len(values) == 1:
        return f"{low} ({values.index[0]})"
    return low if low == high else f"{low} ({values.idxmin()}) to {high} ({values.idxmax()})"


def listing(names: Iterable) -> str:
    """Write names as `a, b and c`; as Markdown where they are; nothing where there are none."""
    *most, last = [name if isinstance(name, Markdown) else str(name) for name in names] or [""]
    comma = type(last)(", ")
    return comma.join(most) + " and " + last if most else last


def growth_exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """Fit the exponent p of y ~ x^p by least squares on logarithms; at least two different x."""
    return float(np.polyfit(np.log(x), np.log(y), deg=1)[0])
