"""Ratios over a grid of two axes as colours around one, each with its number."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize

from pipeline.report.figures import BLUE, ORANGE, WORD_PT
from pipeline.report.tables import OUTCOME_WORDS, significant

# Below one in the colour of PyTorch's, above one in that of ours: whichever is the faster.
AROUND_ONE = LinearSegmentedColormap.from_list("around_one", [ORANGE, "#FFFFFF", BLUE])
# Ratios this far from one, or further, have the full colour.
FULL_COLOUR_AT = 4.0
NOT_MEASURED = "#D8D8D8"
NUMBER_PT = WORD_PT - 2


def ratio_map(axes: Axes, rows: pd.DataFrame, x: str, y: str, y_label: str) -> None:
    """Colour each point of x and y by its median_ratio; a point without one shows its outcome instead.

    `rows` has the columns x, y, median_ratio, status; at most one row a point.
    """
    xs, ys = sorted(rows[x].unique()), sorted(rows[y].unique())
    ratios = rows.pivot(index=y, columns=x, values="median_ratio").reindex(index=ys, columns=xs).to_numpy(float)
    limit = np.log(FULL_COLOUR_AT)
    axes.imshow(np.log(ratios), cmap=AROUND_ONE, norm=Normalize(-limit, limit), aspect="auto", origin="lower")
    axes.set_xticks(range(len(xs)), [_short(value) for value in xs])
    axes.set_yticks(range(len(ys)), [str(value) for value in ys])
    axes.set_ylabel(y_label)
    axes.grid(visible=False)
    axes.set_facecolor(NOT_MEASURED)
    outcomes = rows.set_index([y, x])["status"]
    for row, height in enumerate(ys):
        for column, length in enumerate(xs):
            text, strong = _text(ratios[row, column], outcomes.get((height, length)))
            colour = "white" if strong else "black"
            axes.text(column, row, text, ha="center", va="center", fontsize=NUMBER_PT, color=colour)


def _short(length: int) -> str:
    """Write 16384 as 16k: sequence lengths are powers of two."""
    return f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else str(length)


def _text(ratio: float, status: str | None) -> tuple[str, bool]:
    """Return what a point shows, and whether its colour is so strong that the text must be white."""
    if np.isfinite(ratio):
        return significant(ratio, 2), abs(np.log(ratio)) > 0.75 * np.log(FULL_COLOUR_AT)
    return OUTCOME_WORDS.get(status, ""), False
