"""Divide a step's wall time by kind of work, plus the time in which no kernel ran."""

import pandas as pd

from pipeline.instruments.profilers.intervals import union_us
from pipeline.instruments.profilers.kernel_categories import CATEGORIES, IDLE, category


def budget(work: pd.DataFrame, wall_ms: float) -> list[dict[str, float | int | str]]:
    """Divide a step's wall time among the kinds of work; return category, work_ms and launches of each that occurs.

    work: name, start_us and duration_us of what ran on the GPU. Where kinds overlap, the time belongs to the first of
    them in CATEGORIES, so communication only gets what nothing hides, and the items add up to the wall time.
    """
    found = work["name"].map(category)
    items: list[dict[str, float | int | str]] = []
    busy_us = 0.0
    for number, name in enumerate(CATEGORIES, start=1):
        launches = int((found == name).sum())
        if launches:
            until_here_us = union_us(work[found.isin(CATEGORIES[:number])])
            items.append({"category": name, "work_ms": (until_here_us - busy_us) / 1e3, "launches": launches})
            busy_us = until_here_us
    return [*items, {"category": IDLE, "work_ms": max(0.0, wall_ms - busy_us / 1e3), "launches": 0}]
