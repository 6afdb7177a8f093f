"""Build one frame per stage from its records, the repeats of a cell folded into one row.

A row holds the median of its repeats in every column of numbers, of bytes the largest, and beside it:

- `repeats`: how many of them have values; `medians_ms`: the median of each; `spread_pct`: how far the furthest two
  lie apart;
- `samples_of_repeats`: for each repeat its samples, which `versus` compares;
- `spread_log_std`, `spread_degrees`: how far repeats of such rows lie apart, pooled over all of the stage;
- `cards`: the machines and GPUs that measured it; `on_cpu`: whether the machine has no GPU.

The outcome is `unstable` where that of a repeat is, or where the repeats contradict each other.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pipeline.cells.rows import WITH_VALUES
from pipeline.cells.stage import SETTING, Stage, Stages
from pipeline.cells.tabulate import stage_rows
from pipeline.cells.timed_rows import MOST_HELD_UP, NEGLIGIBLE_SHARE, idle_columns
from pipeline.report.markup import one_line
from pipeline.statistics.medians import pooled_spread

# With pyarrow installed pandas would keep text in Arrow's arrays, which refuse to be added to a column without a value.
pd.set_option("mode.string_storage", "python")

Records = Sequence[Mapping[str, Any]]
# Rows with the same values here pool the spread of their repeats.
KIND = ("phase", "clock", "precision", "dtype", "limited_by")
# From the repeats of a single cell nothing follows for others: so many degrees of freedom take two cells.
LEAST_DEGREES = 4
WHOLE_STEP = "train_step"
# What a phase shares with the whole step that it is of.
OF_STEP = ("size", "precision", "context_length", "batch_size", "world_size", "variant", "impl", "way", "clock")
LIMIT = f"{SETTING}unstable_rel_error"
# "CUDA out of memory. Tried to allocate ... Process 579 has 70.67 GiB memory in use. ... this process has 56.20 ..."
OUT_OF_MEMORY = re.compile(r"CUDA out of memory\. .*", re.DOTALL)
OF_OTHERS = re.compile(r"Process \d+ has ([\d.]+) GiB memory in use")


def by_stage(stages: Stages, records: Records) -> dict[str, pd.DataFrame]:
    """Return the frame of each stage that there are records of, in the order of the stages."""
    found = {name: [record for record in records if record["stage"] == name] for name in stages}
    return {name: build(stages[name], own) for name, own in found.items() if own}


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
    """Return rows fit to be shown: each text one line, reasons brief, NaN wherever there is nothing."""
    shown = rows.where(rows.notna(), np.nan).infer_objects()
    for name in shown.select_dtypes(exclude=["number", "bool"]):
        shown[name] = pd.Series(map(_one_line, shown[name]), shown.index, dtype=object)
    if "reason" in shown:
        shown["reason"] = shown["reason"].map(brief, na_action="ignore").astype(object)
    return shown.copy()


def brief(reason: str) -> str:
    """Shorten what PyTorch says where a GPU's memory runs out: that it did, and how many GiB other processes held.

    Where the driver cannot tell this process from others, all that it lists may be this one.
    """

    def told(found: re.Match[str]) -> str:
        held_gib = sum(map(float, OF_OTHERS.findall(found[0]))) if "this process has" in found[0] else 0.0
        return "CUDA out of memory" + (f"; other processes held {held_gib:.0f} GiB of the GPU" if held_gib else "")

    return OUT_OF_MEMORY.sub(told, reason)


def undisturbed(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Leave out what profiling disturbed: what was exposed in steps that it held up, and longer captures of a step.

    Parts of captures from different repeats would make up a step that never ran.
    """
    if {"exposed_communication_ms", "profiled_ms"} <= set(rows):
        is_held_up = rows["profiled_ms"] > MOST_HELD_UP * rows["median_ms"]
        rows = rows.assign(exposed_communication_ms=rows["exposed_communication_ms"].mask(is_held_up))
    if "span_ms" in rows:
        shortest_ms = rows.groupby(_groups(rows, keys))["span_ms"].transform("min")
        rows = rows[~(rows["span_ms"] > shortest_ms)].reset_index(drop=True)
    return rows


def fold(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Fold rows that are the same in `keys`, the repeats of each other, into one; see the head of this module."""
    of = _groups(rows, keys)
    has_values = rows["status"].isin(WITH_VALUES)
    # A repeat with values speaks for those without; the order of rows stays.
    spoken = pd.concat([rows[has_values], rows[~has_values]])
    first = spoken[~of[spoken.index].duplicated()].sort_index()
    first.index = pd.Index(of[first.index])
    measured, own = rows[has_values], [*keys, "repeat", *rows.filter(like=SETTING)]
    numbers = measured.select_dtypes("number").columns.difference(own)
    repeats = measured.groupby(of)
    folded = repeats[list(numbers)].median()
    sizes = folded.columns[folded.columns.str.endswith("_bytes")]
    folded[sizes] = repeats[list(sizes)].max()
    # What else was read of a row without values stays.
    first[numbers] = folded.reindex(first.index).fillna(first[numbers])
    first = _with_limit(first)
    first["cards"] = repeats["cards"].agg(lambda cards: ", ".join(dict.fromkeys(cards)))
    first["repeats"] = repeats.size().reindex(first.index, fill_value=0)
    first = first.drop(columns="repeat", errors="ignore")
    if "samples_ms" in rows:
        first = _with_spread(first, having(measured, "samples_ms").groupby(of))
    return first.reset_index(drop=True).copy()  # as few blocks, of which sections take rows again and again


def _with_limit(first: pd.DataFrame) -> pd.DataFrame:
    """Say of folded steps what limits them by their own idle time: one repeat may wait for its host, another not."""
    if "gpu_idle_pct" not in first or "limited_by" not in first:
        return first
    busy_ms = first["median_ms"] * (1 - first["gpu_idle_pct"] / 100)
    busy = first.assign(gpu_busy_ms=busy_ms)[busy_ms.notna()]
    limits = [idle_columns(row, row["median_ms"]).get("limited_by") for row in busy.to_dict("records")]
    return first.assign(limited_by=pd.Series(limits, busy.index, dtype=object).combine_first(first["limited_by"]))


def _with_spread(first: pd.DataFrame, timed: Any) -> pd.DataFrame:
    """Add what the repeats say of each other to folded rows; timed: the repeats, grouped by their rows."""
    medians = timed["median_ms"].agg(list).reindex(first.index)
    spread = medians.map(lambda each: max(each) / min(each) - 1, na_action="ignore").astype(float)
    samples = timed["samples_ms"].agg(list)
    first = first.assign(samples_of_repeats=samples, medians_ms=medians, spread_pct=100 * spread)
    unstable = timed["status"].agg(lambda each: "unstable" in set(each)).astype(bool)
    unstable = unstable.reindex(first.index, fill_value=False)
    apart = _contradict(first, spread, medians)
    first["status"] = first["status"].mask(unstable | apart, "unstable")
    words = first["spread_pct"].map("repeats lie {:.0f}% apart".format, na_action="ignore")
    first["reason"] = first["reason"].astype(object).mask(apart & ~unstable, words)
    return _with_pooled_spread(first)


def _contradict(first: pd.DataFrame, spread: pd.Series, medians: pd.Series) -> pd.Series:
    """Tell of which rows the repeats lie further apart than a sample may, and than matters to their whole step."""
    if LIMIT not in first:
        return pd.Series(False, index=first.index)
    apart_ms = medians.map(lambda each: max(each) - min(each), na_action="ignore").astype(float)
    limit = first[LIMIT].astype(float)
    return (spread > limit) & (apart_ms > NEGLIGIBLE_SHARE * limit * _whole_steps_ms(first))


def _whole_steps_ms(first: pd.DataFrame) -> pd.Series:
    """Return the time of the whole step that each row is a phase of; 0 where there is none."""
    if "phase" not in first or not (first["phase"] == WHOLE_STEP).any():
        return pd.Series(0.0, index=first.index)
    of = _groups(first, OF_STEP)
    return of.map(first[first["phase"] == WHOLE_STEP].groupby(of)["median_ms"].max()).fillna(0.0)


def _groups(rows: pd.DataFrame, columns: Sequence[str]) -> pd.Series:
    """Number the groups of rows that are the same in these columns; those that are not there are left out."""
    present = [name for name in columns if name in rows]
    return rows.groupby(present, sort=False, dropna=False).ngroup() if present else pd.Series(0, rows.index)


def _with_pooled_spread(first: pd.DataFrame) -> pd.DataFrame:
    """Add how far repeats of the same kind lie apart, unstable ones too: a single process stands for them as well."""
    kinds = _groups(first, KIND)
    pooled = {kind: pooled_spread(medians.dropna()) for kind, medians in first["medians_ms"].groupby(kinds)}
    log_std, degrees = (kinds.map({kind: spread[place] for kind, spread in pooled.items()}) for place in (0, 1))
    degrees = degrees.where(degrees > 0)
    too_few = first["repeats"].lt(2) & degrees.lt(LEAST_DEGREES)
    return first.assign(spread_log_std=log_std.mask(too_few), spread_degrees=degrees.mask(too_few))


def _one_line(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], str):
        return [one_line(item) for item in value]
    return one_line(value) if isinstance(value, str) else value


# What sections ask of frames


def with_values(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep rows that carry values."""
    return rows[rows["status"].isin(WITH_VALUES)]


def without_skipped(rows: pd.DataFrame, who: str) -> pd.DataFrame:
    """Leave out the names in this column that were skipped in every row of theirs."""
    return rows[~rows["status"].eq("skipped").groupby(rows[who]).transform("all").astype(bool)]


def having(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Keep rows that have something in each of these columns; none where there is no such column."""
    if not set(columns) <= set(rows):
        return rows.head(0)
    return rows[rows[list(columns)].notna().all(axis=1)]


def alike(rows: pd.DataFrame, setting: Mapping[str, Any]) -> pd.DataFrame:
    """Keep rows that have these values."""
    return rows[(rows[list(setting)] == pd.Series(dict(setting), dtype=object)).all(axis=1)]


def shares_a_cpu(rows: pd.DataFrame) -> bool:
    """Tell whether several ranks shared the cores of a machine without GPUs."""
    return {"on_cpu", "world_size"} <= {*rows} and bool(rows["on_cpu"].all() and (rows["world_size"] > 1).any())


def card_counts(rows: pd.DataFrame, *columns: str) -> list[int]:
    """Count the machines and GPUs that the times of each row come from, by these columns like `cards`."""
    named = rows[list(columns)].fillna("").to_numpy().tolist()
    return [len({card for cards in each for card in cards.split(", ") if card}) for each in named]


def in_order(rows: pd.DataFrame, keys: Sequence[str], orders: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Sort by these columns; the names of a column in `orders` as listed there, unknown ones after them."""

    def rank(column: pd.Series) -> pd.Series:
        order = orders.get(str(column.name))
        if order is None:
            return column
        unknown = sorted(set(column.dropna()) - set(order), key=str)
        return column.map({name: place for place, name in enumerate([*order, *unknown])})

    return rows.sort_values(list(keys), key=rank, kind="stable", ignore_index=True)
