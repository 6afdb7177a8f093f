"""What the HTML page shows of a stage beside its section: its charts and all its rows."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.report.all_rows import RowTable
from pipeline.report.charts import Chart


@dataclass(frozen=True)
class StageParts:
    """The charts and rows of one stage, and the title of its section."""

    stage: str
    title: str
    charts: Sequence[Chart]
    rows: RowTable


def to_json(parts: StageParts) -> str:
    """Return the parts of a stage as JSON text; raises ValueError for a number that is not finite."""
    return json.dumps(asdict(parts), allow_nan=False) + "\n"


def from_json(text: str) -> StageParts:
    """Read what `to_json` wrote; raises ValueError, TypeError or KeyError for anything else."""
    values: Mapping[str, Any] = json.loads(text)
    charts = [Chart(**chart) for chart in values["charts"]]
    return StageParts(values["stage"], values["title"], charts, RowTable(**values["rows"]))
