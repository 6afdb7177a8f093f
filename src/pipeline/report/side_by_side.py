"""Cells beside each other: names for them, and what is said of them."""

from collections.abc import Iterable, Sequence

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.page_parts import say
from pipeline.report.section import listing


def cell_names(rows: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    """Name each row's cell by the first axis and whichever others vary: `bf16`, or `bf16, xl, 4 ranks`."""
    telling = [axis for axis in axes if axis == axes[0] or rows[axis].nunique() > 1]
    values = rows[telling].astype(str)
    if "world_size" in telling:
        values["world_size"] += " ranks"
    return list(values.agg(", ".join, axis=1))


def once_each(texts: Iterable[tuple[str, Markdown]]) -> Markdown:
    """Join what is said of named things, `fp32: ...`; what is said of several stands once: `fp32 and bf16: ...`."""
    names: dict[Markdown, list[str]] = {}
    for name, text in texts:
        if text:
            names.setdefault(text, []).append(name)
    return Markdown(" ").join(say("{names}: {text}", names=listing(alike), text=text) for text, alike in names.items())
