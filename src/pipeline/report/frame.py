"""Build one frame per stage from its records, with the repeats of a cell folded into one row.

A row holds the median of its repeats in every numeric column (for bytes, the largest), and these columns:

- `repeats`: how many repeats have values; `medians_ms`: the median of each; `spread_pct`: how far the furthest two
  lie apart;
- `samples_of_repeats`: the samples of each repeat, which `versus` compares;
- `spread_log_std`, `spread_degrees`: the spread between repeats of such rows, pooled over the stage;
- `cards`: the machines and GPUs that measured it; `on_cpu`: whether the machine has no GPU.

A row is `unstable` if one of its repeats is, or if its repeats contradict each other.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pipeline.cells.rows import WITH_VALUES
from pipeline.cells.stage import SETTING, Stage, Stages
from pipeline.cells.tabulate import stage_rows
from pipeline.cells.timed_rows import NEGLIGIBLE_SHARE, TRAIN_STEP, idle_columns, slowed_by_profiler
from pipeline.report.markup import one_line
from pipeline.statistics.medians import RepeatSpread, pooled_spread

# With pyarrow installed, pandas would keep text in Arrow arrays, which cannot be added to a column without values.
pd.set_option("mode.string_storage", "python")

Records = Sequence[Mapping[str, Any]]
# Rows with the same values in these columns pool the spread of their repeats.
KIND = ("phase", "clock", "precision", "dtype", "limited_by")
# The repeats of one cell say nothing about others: at three repeats each, this many degrees of freedom take two cells.
LEAST_DEGREES = 4
# The columns in which a phase agrees with its whole step.
STEP_COLUMNS = ("size", "precision", "context_length", "batch_size", "world_size", "variant", "impl", "way", "clock")
ALLOWED_ERROR = f"{SETTING}unstable_rel_error"
# "CUDA out of memory. Tried to allocate ... Process 579 has 70.67 GiB memory in use. ... this process has 56.20 ..."
OUT_OF_MEMORY = re.compile(r"CUDA out of memory\. .*", re.DOTALL)
OTHER_PROCESS = re.compile(r"Process \d+ has ([\d.]+) GiB memory in use")


def by_stage(stages: Stages, records: Records) -> dict[str, pd.DataFrame]:
    """Return the frame of each stage that has records, in the order of the stages."""
    found = {name: [record for record in records if record["stage"] == name] for name in stages}
    return {name: build(stages[name], of_stage) for name, of_stage in found.items() if of_stage}


def build(stage: Stage, records: Records) -> pd.DataFrame:
    """Return the frame of a stage, with every column that it declares; empty without records."""
    rows = stage_rows(stage, records)
    rows["cards"] = [card(record) for record in records for _ in record["rows"]]
    rows["on_cpu"] = [not record["machine"].get("gpus") for record in records for _ in record["rows"]]
    axes = [name for name in stage.axes if name != "repeat"]
    shown = readable(rows)
    shown = shown.reindex(columns=list(dict.fromkeys([*shown.columns, *stage.row_types.column_names()])))
    keys = [*axes, *stage.row_types.key_columns()]
    return fold(undisturbed(shown, keys), keys)


def card(record: Mapping[str, Any]) -> str:
    """Name what a record was measured on: `NVIDIA H200 3f2a9c01`, with the first digits of its GPUs' UUIDs."""
    machine = record["machine"]
    uuids = [uuid.removeprefix("GPU-")[:8] for uuid in sorted(machine.get("gpus_taken", []))]
    return " ".join(filter(None, [machine["kind"], *uuids]))


def readable(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows fit for display: texts on one line, short reasons, NaN for missing values."""
    shown = rows.where(rows.notna(), np.nan).infer_objects()
    for name in shown.select_dtypes(exclude=["number", "bool"]):
        shown[name] = pd.Series(map(_one_line, shown[name]), shown.index, dtype=object)
    if "reason" in shown:
        shown["reason"] = shown["reason"].map(brief, na_action="ignore").astype(object)
    return shown.copy()


def brief(reason: str) -> str:
    """Shorten PyTorch's out-of-memory message; keep how many GiB of the GPU other processes held.

    If the driver cannot tell this process from others, none is counted: any listed process may be this one.
    """

    def shortened(match: re.Match[str]) -> str:
        held_gib = sum(map(float, OTHER_PROCESS.findall(match[0]))) if "this process has" in match[0] else 0.0
        return "CUDA out of memory" + (f"; other processes held {held_gib:.0f} GiB of the GPU" if held_gib else "")

    return OUT_OF_MEMORY.sub(shortened, reason)


def undisturbed(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Drop what profiling disturbed: exposed communication of slowed steps, and all but the shortest capture of a step.

    Parts of captures from different repeats would make up a step that never ran.
    """
    if {"exposed_communication_ms", "profiled_ms"} <= set(rows):
        is_slowed = slowed_by_profiler(rows["profiled_ms"], rows["median_ms"])
        rows = rows.assign(exposed_communication_ms=rows["exposed_communication_ms"].mask(is_slowed))
    if "span_ms" in rows:
        shortest_ms = rows.groupby(_groups(rows, keys))["span_ms"].transform("min")
        rows = rows[~(rows["span_ms"] > shortest_ms)].reset_index(drop=True)
    return rows


def fold(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Fold rows with the same `keys`, which are repeats, into one; see the docstring of this module."""
    groups = _groups(rows, keys)
    has_values = rows["status"].isin(WITH_VALUES)
    # Other columns come from a repeat with values, if there is one; the order of rows stays.
    with_values_first = pd.concat([rows[has_values], rows[~has_values]])
    folded = with_values_first[~groups[with_values_first.index].duplicated()].sort_index()
    folded.index = pd.Index(groups[folded.index])
    measured, not_folded = rows[has_values], [*keys, "repeat", *rows.filter(like=SETTING)]
    numbers = measured.select_dtypes("number").columns.difference(not_folded)
    repeats = measured.groupby(groups)
    medians = repeats[list(numbers)].median()
    sizes = medians.columns[medians.columns.str.endswith("_bytes")]
    medians[sizes] = repeats[list(sizes)].max()
    # A row without values keeps the numbers that it has.
    folded[numbers] = medians.reindex(folded.index).fillna(folded[numbers])
    folded = _with_limiter(folded)
    folded["cards"] = repeats["cards"].agg(lambda cards: ", ".join(dict.fromkeys(cards)))
    folded["repeats"] = repeats.size().reindex(folded.index, fill_value=0)
    folded = folded.drop(columns="repeat", errors="ignore")
    if "samples_ms" in rows:
        folded = _with_spread(folded, having(measured, "samples_ms").groupby(groups))
    return folded.reset_index(drop=True).copy()  # defragment it: sections select rows again and again


def _with_limiter(folded: pd.DataFrame) -> pd.DataFrame:
    """Set what limits folded steps by their folded idle time: one repeat may wait for its host, another not."""
    if "gpu_idle_pct" not in folded or "limited_by" not in folded:
        return folded
    busy_ms = folded["median_ms"] * (1 - folded["gpu_idle_pct"] / 100)
    busy = folded.assign(gpu_busy_ms=busy_ms)[busy_ms.notna()]
    limiters = [idle_columns(row, row["median_ms"]).get("limited_by") for row in busy.to_dict("records")]
    return folded.assign(limited_by=pd.Series(limiters, busy.index, dtype=object).combine_first(folded["limited_by"]))


def _with_spread(rows: pd.DataFrame, timed: Any) -> pd.DataFrame:
    """Add the spread between repeats to folded rows; timed: the repeats, grouped by their rows."""
    medians = timed["median_ms"].agg(list).reindex(rows.index)
    spread = medians.map(lambda each: max(each) / min(each) - 1, na_action="ignore").astype(float)
    samples = timed["samples_ms"].agg(list)
    rows = rows.assign(samples_of_repeats=samples, medians_ms=medians, spread_pct=100 * spread)
    is_unstable = timed["status"].agg(lambda each: "unstable" in set(each)).astype(bool)
    is_unstable = is_unstable.reindex(rows.index, fill_value=False)
    contradict = _contradict(rows, spread, medians)
    rows["status"] = rows["status"].mask(is_unstable | contradict, "unstable")
    words = rows["spread_pct"].map("repeats differ by {:.0f}%".format, na_action="ignore")
    rows["reason"] = rows["reason"].astype(object).mask(contradict & ~is_unstable, words)
    return _with_pooled_spread(rows)


def _contradict(rows: pd.DataFrame, spread: pd.Series, medians: pd.Series) -> pd.Series:
    """Tell which rows have repeats further apart than the allowed error, by a time that matters to their whole step."""
    if ALLOWED_ERROR not in rows:
        return pd.Series(False, index=rows.index)
    apart_ms = medians.map(lambda each: max(each) - min(each), na_action="ignore").astype(float)
    allowed = rows[ALLOWED_ERROR].astype(float)
    return (spread > allowed) & (apart_ms > NEGLIGIBLE_SHARE * allowed * _whole_steps_ms(rows))


def _whole_steps_ms(rows: pd.DataFrame) -> pd.Series:
    """Return the time of the whole step that each row belongs to; 0 if there is none."""
    if "phase" not in rows or not (rows["phase"] == TRAIN_STEP).any():
        return pd.Series(0.0, index=rows.index)
    groups = _groups(rows, STEP_COLUMNS)
    return groups.map(rows[rows["phase"] == TRAIN_STEP].groupby(groups)["median_ms"].max()).fillna(0.0)


def _groups(rows: pd.DataFrame, columns: Sequence[str]) -> pd.Series:
    """Number the groups of rows that have the same values in these columns; missing columns are ignored."""
    present = [name for name in columns if name in rows]
    return rows.groupby(present, sort=False, dropna=False).ngroup() if present else pd.Series(0, rows.index)


def _with_pooled_spread(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the spread of repeats of the same kind, also of unstable ones: an unrepeated process could be one of them."""
    kinds = _groups(rows, KIND)
    pooled = {kind: pooled_spread(medians.dropna()) for kind, medians in rows["medians_ms"].groupby(kinds)}
    spreads = pd.DataFrame([pooled[kind] for kind in kinds], rows.index, RepeatSpread._fields)
    degrees = spreads["degrees"].where(spreads["degrees"] > 0)
    too_few = rows["repeats"].lt(2) & degrees.lt(LEAST_DEGREES)
    return rows.assign(spread_log_std=spreads["log_std"].mask(too_few), spread_degrees=degrees.mask(too_few))


def _one_line(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], str):
        return [one_line(item) for item in value]
    return one_line(value) if isinstance(value, str) else value


# Helpers for sections


def with_values(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep rows with values."""
    return rows[rows["status"].isin(WITH_VALUES)]


def without_skipped(rows: pd.DataFrame, who: str) -> pd.DataFrame:
    """Drop the names in the column `who` whose rows were all skipped."""
    return rows[~rows["status"].eq("skipped").groupby(rows[who]).transform("all").astype(bool)]


def having(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Keep rows with a value in each of these columns; no rows if a column is missing."""
    if not set(columns) <= set(rows):
        return rows.head(0)
    return rows[rows[list(columns)].notna().all(axis=1)]


def matching(rows: pd.DataFrame, values: Mapping[str, Any]) -> pd.DataFrame:
    """Keep rows that have these values."""
    return rows[(rows[list(values)] == pd.Series(dict(values), dtype=object)).all(axis=1)]


def shares_a_cpu(rows: pd.DataFrame) -> bool:
    """Tell whether several ranks shared the cores of a machine without GPUs."""
    return {"on_cpu", "world_size"} <= {*rows} and bool(rows["on_cpu"].all() and (rows["world_size"] > 1).any())


def card_counts(rows: pd.DataFrame, *columns: str) -> list[int]:
    """Count, for each row, the machines and GPUs named in these columns, which are like `cards`."""
    named = rows[list(columns)].fillna("").to_numpy().tolist()
    return [len({card for cards in each for card in cards.split(", ") if card}) for each in named]


def in_order(rows: pd.DataFrame, keys: Sequence[str], orders: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Sort by these columns; a column in `orders` is sorted as listed there, with unknown names last."""

    def rank(column: pd.Series) -> pd.Series:
        order = orders.get(str(column.name))
        if order is None:
            return column
        unknown = sorted(set(column.dropna()) - set(order), key=str)
        return column.map({name: place for place, name in enumerate([*order, *unknown])})

    return rows.sort_values(list(keys), key=rank, kind="stable", ignore_index=True)
