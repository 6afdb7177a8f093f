"""A stage's section: a template filled with facts, and the words that comparisons of figures give."""

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline.report.markup import Markdown, code
from pipeline.report.tables import OUTCOME_WORDS, significant

TOLERANCE = 0.05


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
    words = {"span": span, "listing": listing, "counted": counted, "growth": growth, "code": code}
    environment.filters |= FORMS | words
    text = environment.get_template(template_path.name).render(facts)
    # Sentences that were not printed leave their blank lines behind.
    return Markdown(re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")


def ms(value: float) -> str:
    """Write milliseconds: from a second on as seconds, below a tenth as microseconds."""
    if _finite(value) >= 1000:
        return f"{significant(value / 1000)} s"
    return f"{significant(value)} ms" if value >= 0.1 or value <= 0 else f"{significant(1000 * value)} µs"


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


FORMS = {
    "ms": ms,
    "ratio": ratio,
    "percent": percent,
    "count": count,
    "number": number,
    "bytes": data_size,
    "mib": mib,
}


def span(values: pd.Series, form: str) -> str:
    """Write the lowest and the highest of named values: `12.3 ms (small) to 456 ms (xl)`."""
    low, high = (FORMS[form](values[name]) for name in (values.idxmin(), values.idxmax()))
    if len(values) == 1:
        return f"{low} ({values.index[0]})"
    return low if low == high else f"{low} ({values.idxmin()}) to {high} ({values.idxmax()})"


def mark_unstable(values: pd.Series, unstable: pd.Series) -> pd.Series:
    """Say in the names of values which are unstable, as flags aligned with them tell: `xl, unstable`."""
    marks = [f", {OUTCOME_WORDS['unstable']}" if flag else "" for flag in unstable]
    return values.set_axis([f"{name}{mark}" for name, mark in zip(values.index, marks, strict=True)])


def listing(names: Iterable) -> str:
    """Write names as `a, b and c`; as Markdown where they are."""
    *most, last = [name if isinstance(name, Markdown) else str(name) for name in names]
    comma = type(last)(", ")
    return comma.join(most) + " and " + last if most else last


def compare(time: float, other_time: float, tolerance: float = TOLERANCE) -> str:
    """Say how a time stands to another: `faster than`, `slower than` or `as fast as`."""
    if time > other_time * (1 + tolerance):
        return "slower than"
    return "faster than" if time * (1 + tolerance) < other_time else "as fast as"


def compare_ratio(median: float, low: float, high: float, tolerance: float = TOLERANCE) -> str:
    """Say how a time stands to another from the other's ratio to it: above one, it is `faster than`.

    `low` and `high` span what the noise allows; where one lies between them and the median is not near it,
    the two are `not told apart from` each other.
    """
    word = compare(1, median, tolerance)
    return "not told apart from" if word != "as fast as" and low <= 1 <= high else word


def ratio_words(gains: pd.DataFrame, names: pd.Series) -> pd.Series:
    """Say of each row of ratios (median_ratio, q1_ratio, q3_ratio), by its name, how the times stand; a word each."""
    columns = zip(gains["median_ratio"], gains["q1_ratio"], gains["q3_ratio"], strict=True)
    return pd.Series([compare_ratio(*three) for three in columns], index=names)


def trend(values: Sequence[float], tolerance: float = TOLERANCE) -> str:
    """Say what ordered values do: `rises`, `falls`, `stays level` or `goes up and down`."""
    values = np.asarray(values, dtype=float)
    if values.max() <= values.min() * (1 + tolerance):
        return "stays level"
    steps = values[1:] / values[:-1]
    if (steps >= 1 / (1 + tolerance)).all():
        return "rises"
    return "falls" if (steps <= 1 + tolerance).all() else "goes up and down"


def growth_exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """Fit the exponent p of y ~ x^p by least squares on logarithms; at least two different x."""
    return float(np.polyfit(np.log(x), np.log(y), deg=1)[0])


def by_word(words: pd.Series) -> dict[str, list]:
    """List, for each word, the names that it is said of."""
    return {word: list(words.index[words == word]) for word in words.unique()}


def growth(exponents: pd.Series) -> str:
    """Say how named things with these exponents grow with length: in one word, or in several with their names."""
    (word, names), *others = by_word(exponents.map(growth_word)).items()
    if not others:
        return f"{word} with length"
    parts = [f"{word} with length at {listing(names)}", *(f"{word} at {listing(names)}" for word, names in others)]
    return ", and ".join(parts) if len(parts) == 2 else ", ".join([*parts[:-1], f"and {parts[-1]}"])


def growth_word(exponent: float, tolerance: float = 0.1) -> str:
    """Say what something with this exponent does: `grows about linearly`, `hardly changes`, ..."""
    if abs(exponent) <= tolerance:
        return "hardly changes"
    if exponent < 0:
        return "falls"
    if exponent < 1 - tolerance:
        return "grows less than linearly"
    if exponent <= 1 + tolerance:
        return "grows about linearly"
    if exponent < 2 - tolerance:
        return "grows more than linearly but less than quadratically"
    return "grows about quadratically" if exponent <= 2 + tolerance else "grows more than quadratically"
