"""What other attention and activation checkpointing give and take: memory against time."""

import pandas as pd

from pipeline.report.section import compare_ratio
from pipeline.report.table_rows import ok
from pipeline.stages.memory.report.selection import AXES, cell_peaks, in_order, of_kind, plain

TIMES = ["median_ms", "q1_ms", "q3_ms"]


def trade(rows: pd.DataFrame) -> pd.DataFrame:
    """Set every attention and checkpointing of a training step beside eager without checkpointing.

    Returns AXES, status, reason, machine, torch, phase, peak_bytes, saved_bytes, median_ms, and over the plain cell:
    memory_ratio, time_ratio, and low_ and high_time_ratio, which the quartiles of both allow. Only settings of
    precision, size and context are in it of which more than the plain cell was asked for; empty without figures.
    """
    peaks = cell_peaks(rows[rows["mode"] == "train_step"])
    setting_axes = ["precision", "size", "context_length"]
    peaks = peaks[peaks.groupby(setting_axes)["attention"].transform("size") > 1]
    if ok(peaks).empty:
        return pd.DataFrame()
    times = of_kind(rows, "time")[[*AXES, *TIMES]]
    kept = of_kind(rows, "saved")[[*AXES, "activations_bytes"]].rename(columns={"activations_bytes": "saved_bytes"})
    table = peaks[[*AXES, "status", "reason", "machine", "torch", "phase", "peak_bytes"]]
    table = table.merge(times, on=AXES, how="left").merge(kept, on=AXES, how="left")
    base = plain(table)[[*setting_axes, "peak_bytes", *TIMES]]
    table = table.merge(base, on=setting_axes, how="left", suffixes=("", "_plain"))
    return in_order(
        table.assign(
            memory_ratio=table["peak_bytes"] / table["peak_bytes_plain"],
            time_ratio=table["median_ms"] / table["median_ms_plain"],
            low_time_ratio=table["q1_ms"] / table["q3_ms_plain"],
            high_time_ratio=table["q3_ms"] / table["q1_ms_plain"],
        )
    )


def trade_words(table: pd.DataFrame) -> list[dict]:
    """Say for each variant what it does to memory and to time, in every setting where it was measured."""
    variants = ok(table)[(ok(table)["attention"] != "eager") | (ok(table)["checkpoint_every"] > 0)]
    return [
        {
            "attention": attention,
            "checkpoint_every": int(every),
            "memory": _by_setting(group, "memory_ratio"),
            "time": _by_setting(group, "time_ratio"),
            "time_words": sorted(set(_time_words(group))),
            "by_optimizer": bool((group["phase"] == "optimizer").all()),
        }
        for (attention, every), group in variants.groupby(["attention", "checkpoint_every"], sort=False)
    ]


def _by_setting(group: pd.DataFrame, column: str) -> pd.Series:
    names = group["precision"] + " at " + group["context_length"].astype(str)
    return pd.Series(group[column].to_numpy(), index=names).dropna()


def _time_words(group: pd.DataFrame) -> list[str]:
    """Compare step times; `compare_ratio` takes the other's time over this one's."""
    timed = group[group["time_ratio"].notna()]
    columns = (1 / timed[name] for name in ("time_ratio", "high_time_ratio", "low_time_ratio"))
    return [compare_ratio(*three) for three in zip(*columns, strict=True)]
