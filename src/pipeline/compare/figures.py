"""List every time and every memory peak of a run, with what `judge` needs; name rows by the words of their cell."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from pipeline.cells import fields
from pipeline.cells.rows import WITH_FIGURES
from pipeline.cells.stage import Stage, Stages

ROW = ["stage", "cell", "row"]
KEYS = [*ROW, "quantity"]
OF_TIME = ("median_ms", "q1_ms", "q3_ms", "samples_of_repeats", "spread_log_std", "spread_degrees")
COLUMNS = [*KEYS, "status", "reason", "repeats", "cards", *OF_TIME, "bytes"]
NUMBERS = ("repeats", "median_ms", "q1_ms", "q3_ms", "spread_log_std", "spread_degrees", "bytes")
# How long the GPU works in a step: one number, where a time has a median and quartiles.
GPU_BUSY = "gpu_busy_ms"


def figures(frames: Mapping[str, pd.DataFrame], stages: Stages) -> pd.DataFrame:
    """Return one line per figure, with COLUMNS; a row without figures has one line, of quantity ``.

    Times have OF_TIME, peaks of memory have `bytes`.
    """
    lines = []
    for name, rows in frames.items():
        for row in rows.to_dict("records"):
            line = named(row, stages[name]) | {
                column: row[column] for column in ("status", "reason", "repeats", "cards")
            }
            found = [*_times(row), *_peaks(row)] if row["status"] in WITH_FIGURES else []
            lines += [{**line, **figure} for figure in found or [{"quantity": ""}]]
    return pd.DataFrame(lines, columns=COLUMNS).astype(dict.fromkeys(NUMBERS, float))


def named(row: Mapping[Any, Any], stage: Stage) -> dict[str, str]:
    """Name a row of a frame by ROW: its cell without the repeat, its keys, of which texts stand without their name."""
    cell, keys = words(row, stage)
    return {
        "stage": stage.name,
        "cell": " ".join(f"{name}={word}" for name, word in cell.items()),
        "row": " ".join(word if isinstance(row[name], str) else f"{name}={word}" for name, word in keys.items()),
    }


def words(row: Mapping[Any, Any], stage: Stage) -> tuple[dict[str, str], dict[str, str]]:
    """Return the values of a row's axes, but `repeat`, and of its keys, as words that name it."""
    axes = {name: fields.text(row[name]) for name in stage.axes if name != "repeat"}
    return axes, {name: _word(row[name]) for name in stage.row_types.key_columns() if _has(row, name)}


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


def _word(value: Any) -> str:
    return fields.text(int(value) if isinstance(value, float) and value == int(value) else value)
