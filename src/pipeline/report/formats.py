"""Write values for tables, labels and answers: three significant figures, units as the field writes them."""

import math
import numbers
import string
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from pipeline.report.markup import Markdown, code

# A function that writes one value of a column.
Form = Callable[..., str]


def significant(value: float, digits: int = 3) -> str:
    """Write a number to `digits` significant figures, without an exponent down to 1e-4; n/a if it is not finite."""
    if not math.isfinite(value):
        return "n/a"
    if value == 0:
        return "0"
    if abs(value) < 1e-4:
        return f"{value:.{digits - 1}e}"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{value:,.{max(0, decimals)}f}"


def text(value: object) -> str | Markdown:
    """Write a value as it is."""
    return value if isinstance(value, Markdown) else str(value)


def number(value: float) -> str:
    """Write a number to three significant figures."""
    return significant(float(value))


def count(value: float) -> str:
    """Write a whole number, thousands separated."""
    return f"{value:,.0f}"


def plain(value: Any) -> str:
    """Write whole numbers as counts, other numbers to three significant figures, all else as it is."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return str(value)
    return count(float(value)) if float(value).is_integer() else number(float(value))


def ms(value: float) -> str:
    """Write milliseconds with a unit: as seconds from 1000 ms on, as microseconds below 0.1 ms."""
    if value >= 1000:
        return f"{significant(value / 1000)} s"
    return f"{significant(value)} ms" if value >= 0.1 or value <= 0 else f"{significant(1000 * value)} µs"


def times(value: float) -> str:
    """Write a ratio: 1.41×."""
    return f"{value:.2f}×" if value < 100 else f"{significant(value)}×"


def mark(status: str) -> Markdown:
    """Write the mark of an unstable value, nothing for others."""
    return Markdown("~" if status == "unstable" else "")


def percent(value: float) -> str:
    """Write a percentage: 41%, 4.1%."""
    return f"{significant(value, 2)}%"


def gb(value: float) -> str:
    """Write bytes as GB of 10^9, without the unit."""
    return significant(value / 1e9)


def data_size(value: float) -> str:
    """Write bytes with a unit, in powers of ten: 1.20 GB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{significant(value / size)} {unit}"
    return f"{value:.0f} B"


def parameters(value: float) -> str:
    """Write a number of parameters: 1.20B, 350M."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{significant(value / size)}{unit}"
    return f"{value:.0f}"


def interval(row: Mapping[Any, Any] | pd.Series) -> str:
    """Write a ratio of `versus` with its interval: `1.41× (1.38 to 1.44)`; the ratio alone if it has none."""
    if pd.isna(row["low"]):
        return times(row["ratio"])
    return f"{_ratio(row['ratio'])}× ({_ratio(row['low'])} to {_ratio(row['high'])})"


def _ratio(value: float) -> str:
    """Write a ratio: to three decimals if two would hide on which side of 1 it lies."""
    return f"{value:.3f}" if f"{value:.2f}" == "1.00" else times(value).removesuffix("×")


FORMS: Mapping[str, Form] = {
    form.__name__: form
    for form in (code, count, data_size, gb, mark, ms, number, parameters, percent, plain, text, times)
}


class Filling(string.Formatter):
    """Fills templates whose fields may name a form: `{median_ms:ms}`; finish: applied to each written field."""

    def __init__(self, finish: Form = str) -> None:
        self.finish = finish

    def format_field(self, value: Any, form: str) -> str:
        """Write a field in its form: one of FORMS or, as in `{tokens:,}`, a Python format."""
        return self.finish(FORMS[form](value) if form in FORMS else format(value, form) if form else value)


def written(rows: pd.DataFrame, template: str) -> list[str | None]:
    """Fill a template such as `{size}, {median_ms:ms}` from each row; None if a value is missing."""
    filling = Filling()
    named = rows[list(dict.fromkeys(name for _, name, _, _ in filling.parse(template) if name))]
    lines = zip(named.to_dict("records"), named.notna().all(axis=1), strict=True)
    return [filling.format(template, **line) if is_complete else None for line, is_complete in lines]
