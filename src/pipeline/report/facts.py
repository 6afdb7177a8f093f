"""Describe a run: machines, software, outcomes by stage, spread between repeats."""

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.cells.rows import WITH_VALUES
from pipeline.cells.stage import Stages
from pipeline.cells.tabulate import LIBRARIES, cell_line
from pipeline.cells.timed_rows import TRAIN_STEP
from pipeline.instruments.machine.identity import SOFTWARE
from pipeline.report.frame import having, readable
from pipeline.statistics.medians import pooled_spread

# Numbers that differ between reasons that are otherwise the same.
OWN_NUMBERS = r"[\d.]+(?= s, above)|(?:(?<=error of the median )|(?<=known to ))[\d.]+%"
ABSENT = ("none", "absent")
MOST_GPUS_NAMED = 4


def cells(records: Sequence[Mapping[str, Any]], stages: Stages) -> pd.DataFrame:
    """Return one row per record: stage, cell, outcome, when and on what it was measured."""
    return readable(pd.DataFrame([cell_line(record, stages[record["stage"]].row_types) for record in records]))


def machine(cells: pd.DataFrame) -> dict[str, str]:
    """Return facts about the machines and the run, by name; unknown ones are left out."""
    started = pd.to_datetime(cells["started_at"])
    seconds = cells[["start_up_s", "set_up_s", "measuring_s"]].sum()
    share = 100 * seconds["measuring_s"] / (seconds.sum() or 1.0)  # all may have failed
    software = {name: _listed(cells[name][~cells[name].isin(ABSENT)]) for name in (*SOFTWARE, *LIBRARIES)}
    peers = dict.fromkeys(", ".join(cells["peers"].dropna()).split(", "))
    variables = {each for words in cells["variables"].dropna().unique() for each in shlex.split(words)}
    uuids = gpus(cells)
    described = {
        "machine": _listed(cells["machine"]),
        "GPU memory": _sizes(having(cells, "gpu_memory_bytes").get("gpu_memory_bytes", pd.Series(dtype=float)), True),
        # A long list is hard to read.
        "GPUs used": " / ".join(uuids) if len(uuids) <= MOST_GPUS_NAMED else f"{len(uuids)}, listed in cells.csv",
        "host": f"{_listed(cells['cpu'])}; {_sizes(cells['memory_bytes'])}",
        "software": ", ".join(
            [*(f"{name} {versions}" for name, versions in software.items() if versions), *filter(None, peers)]
        ),
        "variables": shlex.join(sorted(variables)),
        "measured": f"{started.min():%Y-%m-%d %H:%M} to {started.max():%Y-%m-%d %H:%M} UTC",
        "cells took": f"{seconds.sum() / 60:,.0f} minutes without waits, {share:.0f}% of it measuring",
    }
    return {what: words for what, words in described.items() if words}


def of_several_commits(cells: pd.DataFrame) -> list[str]:
    """Return the stages whose cells were not all measured at one commit."""
    commits = cells.groupby("stage", sort=False)["commit"].nunique()
    return list(commits.index[commits > 1])


def vocabularies(frames: Mapping[str, pd.DataFrame]) -> dict[int, list[str]]:
    """Return the stages by vocabulary size of their models, most stages first; empty if all have the same size."""
    found: dict[int, list[str]] = {}
    for stage, rows in frames.items():
        for size in rows.get("setting_vocab_size", pd.Series(dtype=float)).dropna().unique():
            found.setdefault(int(size), []).append(stage)
    return dict(sorted(found.items(), key=lambda each: -len(each[1]))) if len(found) > 1 else {}


def gpus(cells: pd.DataFrame) -> list[str]:
    """Return the GPUs that cells were measured on, by the first characters of their UUIDs."""
    return sorted({uuid[:12] for uuid in " ".join(having(cells, "gpus").get("gpus", [])).split()})


def _listed(values: pd.Series) -> str:
    return " / ".join(sorted({str(value) for value in values.dropna()}))


def _sizes(bytes_: pd.Series, in_gb_too: bool = False) -> str:
    form = "{gb:,.0f} GB ({gib:,.0f} GiB)" if in_gb_too else "{gib:,.0f} GiB"
    sizes = sorted(set(bytes_.dropna().round(-8)))
    return " / ".join(form.format(gb=size / 1e9, gib=size / 2**30) for size in sizes)


def stage_summaries(cells: pd.DataFrame, frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return one row per stage: cells, those with values, times, unstable ones, repeats, and the spread of repeats.

    std_between_repeats: of their medians in percent, pooled over whole steps, or over all times if there are none;
    furthest_two: the largest difference between repeats of one such time, in percent.
    """
    return pd.DataFrame([_stage_summary(cells[cells["stage"] == name], frame) for name, frame in frames.items()])


def _stage_summary(cells: pd.DataFrame, frame: pd.DataFrame) -> dict[str, Any]:
    times = having(frame, "median_ms")
    steps = times[times["phase"] == TRAIN_STEP] if "phase" in times else times
    repeated = having(steps if len(steps) else times, "spread_pct")
    spread = pooled_spread(repeated.get("medians_ms", ()))
    return {
        "stage": cells["stage"].iloc[0],
        "cells": len(cells),
        "with_values": int(cells["status"].isin(WITH_VALUES).sum()),
        "times": len(times),
        "unstable": int((times["status"] == "unstable").sum()),
        "most_repeats": int(frame["repeats"].max()),
        "std_between_repeats": 100 * spread.log_std if spread.degrees else None,
        "furthest_two": repeated["spread_pct"].max() if spread.degrees else None,
    }


def without_values(cells: pd.DataFrame) -> pd.DataFrame:
    """Count the cells without values, except failed ones, which the first screen lists.

    Cells with the same stage, outcome and reason share a row; all skipped cells share one row.
    """
    lacking = cells[~cells["status"].isin([*WITH_VALUES, "failed"])].rename(columns={"status": "outcome"})
    reasons = lacking["reason"].astype("string").str.replace(OWN_NUMBERS, "…", regex=True).fillna("")
    lacking = lacking.assign(reason=reasons)
    is_skipped = lacking["outcome"] == "skipped"
    found = lacking[~is_skipped].groupby(["outcome", "stage", "reason"], sort=False)
    found = found.size().reset_index(name="cells")
    skipped = lacking[is_skipped].groupby("outcome")
    listed = skipped.agg(stage=("stage", _distinct(", ")), reason=("reason", _distinct("; ")), cells=("cell", "size"))
    return pd.concat([found.sort_values("cells", ascending=False, kind="stable"), listed.reset_index()])


def _distinct(separator: str) -> Callable[[pd.Series], str]:
    return lambda values: separator.join(values.drop_duplicates())


def missing(cells: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Count, by stage, the cells of the scale that have no record; cells: their stages and cells."""
    return dict(Counter(each["stage"] for each in cells))


def changed_since(cells: pd.DataFrame, outdated: Sequence[str]) -> dict[str, int]:
    """Count, by stage, the cells measured by code that has changed since; outdated: digests of that code."""
    return count_by_stage(cells, cells["digest"].isin(outdated))


def side_by_side(cells: pd.DataFrame) -> int:
    """Count the cells that kept to the cores of their GPUs, so that others could run on the host's other GPUs."""
    on_gpus = having(cells, "gpus")
    return int((on_gpus["host_cores"] < on_gpus["cores"]).sum()) if len(on_gpus) else 0


def count_by_stage(cells: pd.DataFrame, is_selected: pd.Series) -> dict[str, int]:
    """Count, by stage, the cells that the mask `is_selected` selects."""
    return cells.loc[is_selected, "stage"].value_counts(sort=False).to_dict()
