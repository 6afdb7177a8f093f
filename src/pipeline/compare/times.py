"""Compare the times of two runs: each figure over its repeats, faster or slower, and by which rule.

If the stage has repeats, `compare_samples` judges. Otherwise it gives only the ratio, and a rule of thumb judges:
medians differ by more than the tolerance, and quartiles do not overlap.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from statistics import geometric_mean
from typing import Any

import pandas as pd

from pipeline.cells import fields
from pipeline.cells.rows import STATUSES
from pipeline.cells.stage import Stages
from pipeline.compare.runs import Record
from pipeline.report.intervals import (
    FASTER,
    SAME,
    SLOWER,
    UNDECIDED,
    RepeatSpread,
    compare_samples,
    pooled_repeat_spread,
)
from pipeline.report.repeats import KIND_COLUMNS, contradict, contradiction

WITHIN, UNJUDGED = "within the tolerance", "not judged"
# In table order: the worst first.
WORDS = (SLOWER, UNDECIDED, UNJUDGED, FASTER, SAME, WITHIN)
REPEATS, QUARTILES = "repeats", "quartiles"
# A ratio beyond this is no matter of noise, in unstable times either.
LARGE = 1.25
# How long the GPU works in a step: one number, where a time has a median and quartiles.
GPU_BUSY = "gpu_busy_ms"
KEYS = ["stage", "cell", "row"]
KIND = ["stage", "quantity", "kind"]
LIMIT = "unstable_rel_error"  # a setting, put beside each row
COLUMNS = [*KEYS, "kind", "quantity", "status", "reason", "n", "median", "q1", "q3", "medians", "samples"]

Line = dict[str, Any]
Spreads = Mapping[tuple[str, ...], RepeatSpread | None]


def figures(records: Iterable[Record], stages: Stages) -> pd.DataFrame:
    """Return one line per timed quantity of each row over its repeats; a row without any has one line, quantity "".

    Over the repeats: status and reason are the worst, unstable where the repeats contradict each other, n the smallest,
    median the geometric mean, q1 the smallest, q3 the largest. medians and samples are lists with one entry per repeat
    that has figures.
    """
    repeats: dict[tuple[str, str, str], list[Line]] = {}
    for record in records:
        limit = record["settings"].get(LIMIT, math.inf)
        for name, row in named_rows(record, stages):
            key = record["stage"], cell_words(record, stages), name
            repeats.setdefault(key, []).append({**row, LIMIT: limit})
    lines = [line for key, rows in repeats.items() for line in _joined(dict(zip(KEYS, key, strict=True)), rows)]
    return pd.DataFrame(lines, columns=COLUMNS).astype(dict.fromkeys(["n", "median", "q1", "q3"], float))


def cell_words(record: Record, stages: Stages) -> str:
    """Name a cell by its axes, the same for all its repeats and for versions that lack some of the axes."""
    cell = asdict(stages[record["stage"]].cell_type()) | record["cell"]
    return " ".join(f"{axis}={fields.text(value)}" for axis, value in cell.items() if axis != "repeat")


def named_rows(record: Record, stages: Stages) -> Iterator[tuple[str, Line]]:
    """Yield the rows of a cell, each named by its key columns, whatever their order."""
    columns = stages[record["stage"]].row_types.key_columns()
    for row in record["rows"]:
        yield " ".join(_word(column, row[column]) for column in columns if row.get(column) is not None), row


def _word(column: str, value: Any) -> str:
    return value if isinstance(value, str) else f"{column}={fields.text(value)}"


def _joined(key: Line, repeats: list[Line]) -> Iterator[Line]:
    """Join the repeats of one row, separately for each quantity."""
    worst = max(repeats, key=lambda row: STATUSES.index(row["status"]))
    kind = " ".join(row_kind for name in KIND_COLUMNS if (row_kind := worst.get(name)))
    line = {**key, "kind": kind, "status": worst["status"], "reason": worst.get("reason") or ""}
    timed: dict[str, list[Line]] = {}
    for row in repeats:
        for quantity in _timed_quantities(row):
            timed.setdefault(quantity, []).append(row)
    if not timed:
        yield {**line, "quantity": "", "medians": [], "samples": []}
    for quantity, rows in timed.items():
        medians, firsts, thirds = zip(*(_quartiles(row, quantity) for row in rows), strict=True)
        if line["status"] == "ok" and contradict(medians, rows[0][LIMIT]):
            line |= {"status": "unstable", "reason": contradiction(medians)}
        yield {
            **line,
            "quantity": quantity,
            "n": min((row["n"] for row in rows if row.get("n") is not None), default=None),
            "median": geometric_mean(medians),
            "q1": min(firsts),
            "q3": max(thirds),
            "medians": list(medians),
            "samples": [row.get(f"samples_{quantity}") or [] for row in rows],
        }


def _quartiles(row: Line, quantity: str) -> tuple[float, float, float]:
    """Return the median and the two quartiles beside it; of GPU_BUSY it is one number."""
    names = [GPU_BUSY] * 3 if quantity == GPU_BUSY else [f"{part}_{quantity}" for part in ("median", "q1", "q3")]
    median, first, third = (row[name] for name in names)
    return median, first, third


def _timed_quantities(row: Line) -> list[str]:
    """Return what a row has in ms: GPU_BUSY, and `ms`, `forward_ms` and the like with median and quartiles."""
    medians = [name.removeprefix("median_") for name in row if name.startswith("median_") and name.endswith("ms")]
    busy = [GPU_BUSY] if row.get(GPU_BUSY) else []
    return [name for name in medians if row[f"median_{name}"] is not None and f"q1_{name}" in row] + busy


def repeat_spreads(*runs: pd.DataFrame) -> Spreads:
    """Pool the spread of repeats over the `ok` figures of all runs by kind; None for a kind without repeats."""
    known = pd.concat(runs)
    kinds = known[known["status"] == "ok"].groupby(KIND)["medians"]
    return {kind: pooled_repeat_spread(medians) for kind, medians in kinds}


def judged(both: pd.DataFrame, spreads: Spreads, tolerance: float) -> pd.DataFrame:
    """Add columns to figures that both runs have: ratio (b over a), low, high, verdict, rule and worse.

    rule: repeats or quartiles. low and high: the 95% interval of the ratio by repeats, else the range that the
    quartiles allow. worse: slower by more than the tolerance, by either rule.
    """
    lines = [_judged(line, spreads, tolerance) for line in both.to_dict("records")]
    verdicts = pd.DataFrame(lines, columns=["ratio", "low", "high", "verdict", "rule"])
    verdicts["worse"] = (verdicts["verdict"] == SLOWER) & (verdicts["ratio"] > 1 + tolerance)
    return pd.concat([both.reset_index(drop=True), verdicts], axis=1)


def _judged(line: Line, spreads: Spreads, tolerance: float) -> Line:
    spread = spreads.get(tuple(line[f"{name}_a" if name == "kind" else name] for name in KIND))
    if all([*line["samples_a"], *line["samples_b"]]):
        verdict = compare_samples(line["samples_a"], line["samples_b"], spread)
        low, high = verdict.low, verdict.high
        if low is not None and high is not None:
            word = UNJUDGED if verdict.word != SAME and _is_unsure(line, low, high) else verdict.word
            return {"ratio": verdict.ratio, "low": low, "high": high, "verdict": word, "rule": REPEATS}
    ratio, low, high = (line[f"{b}_b"] / line[f"{a}_a"] for b, a in (("median", "median"), ("q1", "q3"), ("q3", "q1")))
    if max(ratio, 1 / ratio) <= 1 + tolerance:
        word = WITHIN
    elif _is_unsure(line, low, high):
        word = UNJUDGED
    elif low <= 1 <= high:
        word = UNDECIDED
    else:
        word = SLOWER if ratio > 1 else FASTER
    return {"ratio": ratio, "low": low, "high": high, "verdict": word, "rule": QUARTILES}


def _is_unsure(line: Line, low: float, high: float) -> bool:
    """Tell whether either figure is a single sample, or unstable while the ratio, from low to high, is not LARGE."""
    is_unstable = "unstable" in (line["status_a"], line["status_b"])
    return min(line["n_a"], line["n_b"]) < 2 or (is_unstable and low <= LARGE and high >= 1 / LARGE)
