"""The first screen's table as numbers, without the rest of the section: for a comparison of two runs."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.stages.timing.report import headline
from pipeline.stages.timing.report.steps import first_screen_steps, of_mode, warm
from pipeline.stages.timing.report.tuned import tuned_steps


def models(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> list[dict[str, Any]]:
    """Return what each model reaches (headline.models); empty where no eager step has figures.

    beside: the rows of the stage levers.
    """
    if of_mode(warm(rows), "eager").empty:
        return []
    steps = first_screen_steps(rows)
    return headline.models(steps, rows, tuned_steps(steps, beside["levers"]))
