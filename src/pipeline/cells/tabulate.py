"""Records to tidy tables: one of a stage's rows, one of its cells and how they were run."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.cells import fields
from pipeline.cells.record import HOST_PARTS, SOFTWARE, STATUSES, WITH_FIGURES, read_record


def row_table(paths: Iterable[Path]) -> pd.DataFrame:
    """Return a table with a line a row: the cell's axes and settings, the row, machine and software.

    It has a column `reason` also where every row is ok.
    """
    records = [read_record(path) for path in paths]
    return pd.DataFrame(
        [
            {**record["cell"], **record["settings"], "reason": None, **_flat(row), **_machine(record)}
            for record in records
            for row in record["rows"]
        ]
    )


def cell_table(paths: Iterable[Path]) -> pd.DataFrame:
    """Return a table with a line a cell: its status, when, how long, on what, by which command."""
    return pd.DataFrame([_cell_line(read_record(path)) for path in paths])


def _cell_line(record: dict[str, Any]) -> dict[str, Any]:
    seconds = {f"{name}_s": value for name, value in record["seconds"].items()}
    return {
        "stage": record["stage"],
        "cell": " ".join(f"{axis}={fields.text(value)}" for axis, value in record["cell"].items()),
        **_outcome(record["rows"]),
        "started_at": record["started_at"],
        "process": record["process"],
        **seconds,
        **{f"host_{name}": record.get("host", {}).get(name) for name in HOST_PARTS},
        **_machine(record),
        **{name: record["code"].get(name) for name in ("digest", "commit")},
        "command": record["command"],
    }


def _outcome(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return the status of the cell, with the reason: that of its least fortunate row that has a figure.

    Implementations of which one cannot do what the others can are rows of one cell: only where no row has a figure is
    the cell without one. Where some figures alone are unstable, the reason says how many.
    """
    with_figure = [row for row in rows if row["status"] in WITH_FIGURES]
    worst = max(with_figure or rows, key=lambda row: STATUSES.index(row["status"]))
    status, reason = worst["status"], worst.get("reason", "")
    like_it = sum(row["status"] == status for row in with_figure)
    if status == "unstable" and like_it < len(with_figure):
        reason = f"{like_it} of {len(with_figure)} figures{', the first' if like_it > 1 else ''}: {reason}"
    return {"status": status, "reason": reason}


def _machine(record: dict[str, Any]) -> dict[str, Any]:
    facts = record["machine"]
    return {"machine": facts["kind"], **{name: facts["software"][name] for name in SOFTWARE}}


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its lists as space-separated text, which a CSV can hold."""
    return {
        name: " ".join(f"{item:.6g}" if isinstance(item, float) else str(item) for item in value)
        if isinstance(value, list)
        else value
        for name, value in row.items()
    }
