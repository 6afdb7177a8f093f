"""List every time and every memory peak of a run, with what `judge` needs."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from pipeline.cells import fields
from pipeline.cells.rows import WITH_FIGURES
from pipeline.cells.stage import Stage, Stages

KEYS = ["stage", "cell", "row", "quantity"]
OF_TIME = ("median_ms", "q1_ms", "q3_ms", "samples_of_repeats", "spread_log_std", "spread_degrees")
COLUMNS = [*KEYS, "status", "reason", "repeats", "cards", *OF_TIME, "bytes"]
# How long the GPU works in a step: one number, where a time has a median and quartiles.
GPU_BUSY = "gpu_busy_ms"


def figures(frames: Mapping[str, pd.DataFrame], stages: Stages) -> pd.DataFrame:
    """Return one line per figure, with COLUMNS; a row without figures has one line, of quantity ``.

    Times have OF_TIME, peaks of memory have `bytes`.
    """
    lines = [
        line for name, rows in frames.items() for row in rows.to_dict("records") for line in _of(row, stages[name])
    ]
    numbers = ["repeats", "median_ms", "q1_ms", "q3_ms", "spread_log_std", "spread_degrees", "bytes"]
    return pd.DataFrame(lines, columns=COLUMNS).astype(dict.fromkeys(numbers, float))


def _of(row: Mapping[Any, Any], stage: Stage) -> Iterator[dict[str, Any]]:
    axes = [name for name in stage.axes if name != "repeat"]
    keys = [name for name in stage.row_types.key_columns() if _has(row, name)]
    line = {
        "stage": stage.name,
        "cell": " ".join(f"{axis}={fields.text(row[axis])}" for axis in axes),
        "row": " ".join(_word(name, row[name]) for name in keys),
        **{name: row[name] for name in ("status", "reason", "repeats", "cards")},
    }
    found = [*_times(row), *_peaks(row)] if row["status"] in WITH_FIGURES else []
    yield from ({**line, **figure} for figure in found or [{"quantity": ""}])


def _times(row: Mapping[Any, Any]) -> Iterator[dict[str, Any]]:
    for name in row:
        part = str(name).removeprefix("median_")
        if str(name).startswith("median_") and part.endswith("ms") and _has(row, name) and _has(row, f"q1_{part}"):
            time = {column: row[f"{column.removesuffix('ms')}{part}"] for column in ("median_ms", "q1_ms", "q3_ms")}
            yield {"quantity": part, **({each: row.get(each) for each in OF_TIME} if part == "ms" else time)}
    if _has(row, GPU_BUSY) and row[GPU_BUSY] > 0:
        yield {"quantity": GPU_BUSY, **dict.fromkeys(OF_TIME[:3], row[GPU_BUSY])}


def _peaks(row: Mapping[Any, Any]) -> Iterator[dict[str, Any]]:
    for name in row:
        if str(name).startswith("peak_") and str(name).endswith("bytes") and _has(row, name) and row[name] > 0:
            yield {"quantity": name, "bytes": row[name]}


def _has(row: Mapping[Any, Any], name: Any) -> bool:
    value = row.get(name)
    return isinstance(value, list) or (value is not None and pd.notna(value))


def _word(column: str, value: Any) -> str:
    number = int(value) if isinstance(value, float) and value == int(value) else value
    return value if isinstance(value, str) else f"{column}={fields.text(number)}"
