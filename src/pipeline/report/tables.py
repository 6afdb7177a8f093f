"""DataFrames to Markdown: numbers by significant figures, outcomes as words, long tables folded."""

import math

import pandas as pd

from pipeline.report.markup import Markdown

# As many as can be read.
MAX_COLUMNS = 8

# A number, perhaps with more behind it; a name like 2.7B is none.
NUMBER = r"^-?[\d.,]+(?![\w.,])"

OUTCOME_WORDS = {"oom": "OOM", "skipped": "skipped", "unstable": "unstable", "wrong": "wrong", "failed": "failed"}


def significant(value: float, digits: int = 3) -> str:
    """Write a number to so many significant figures, without an exponent; n/a for NaN."""
    if not math.isfinite(value):
        return "n/a"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{value:,.{max(0, decimals)}f}"


def outcome(status: str, reason: str | None) -> str:
    """Write what became of a cell without a figure: `OOM`, `skipped: no CUDA`."""
    word = OUTCOME_WORDS[status]
    return f"{word}: {reason}" if status == "skipped" and isinstance(reason, str) and reason else word


def with_outcomes(cells: pd.Series, rows: pd.DataFrame) -> pd.Series:
    """Replace the text of rows without a figure by their outcome; say so beside an unstable one.

    `cells` is text aligned with `rows`, which has the columns status and reason.
    """

    def text(cell: str, status: str, reason: str | None) -> str:
        if status == "ok":
            return cell
        return f"{cell} (unstable)" if status == "unstable" else outcome(status, reason)

    found = [text(*entry) for entry in zip(cells, rows["status"], rows["reason"], strict=True)]
    return pd.Series(found, index=rows.index, dtype=object)


def median_cells(rows: pd.DataFrame) -> pd.Series:
    """Write `median [q1, q3]` of the times, or the outcome, for every row."""
    times = rows[["median_ms", "q1_ms", "q3_ms"]].to_numpy(dtype=float)
    cells = ["{} [{}, {}]".format(*(significant(time, 4) for time in three)) for three in times]
    return with_outcomes(pd.Series(cells, index=rows.index, dtype=object), rows)


def number_cells(rows: pd.DataFrame, column: str) -> pd.Series:
    """Write one numeric column to significant figures, or the outcome, for every row."""
    return with_outcomes(rows[column].map(significant), rows)


def times_by(rows: pd.DataFrame, line: str, column: pd.Series) -> pd.DataFrame:
    """Spread median times, or outcomes: one line per value of `line`, one column per name in `column`."""
    cells = with_outcomes(rows["median_ms"].map(significant), rows.assign(reason=None))
    wide = rows.assign(cell=cells, column=column).pivot(index=line, columns="column", values="cell")
    return wide.reindex(columns=column.unique()).rename_axis(columns=None)


def markdown(table: pd.DataFrame) -> Markdown:
    """Write a table of text as Markdown, columns with numbers to the right."""
    text = table.astype(str)
    align = ["right" if text[column].str.match(NUMBER).any() else "left" for column in text]
    cells = text.map(Markdown.escape).set_axis([Markdown.escape(name) for name in text], axis="columns")
    return Markdown(cells.to_markdown(index=False, disable_numparse=True, colalign=align))
