"""The rows of a stage as a DataFrame, for sections and notebooks."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from pipeline.cells.stage import Stage
from pipeline.cells.tabulate import stage_lines


def stage_rows(stage: Stage, records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the rows of a stage's records, with the columns of its tables; lists are lists."""
    columns, lines = stage_lines(stage, records)
    return pd.DataFrame(lines, columns=columns)
