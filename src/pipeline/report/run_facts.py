"""What a run was: machines, versions and time for the first page, what became of its cells, what has changed since."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from pipeline.cells.rows import STATUSES
from pipeline.report.section import data_size, listing, number
from pipeline.report.table_rows import has_figures, known

MOST_OUTCOMES = 12
MOST_NAMED = 2
LACKING = "their machine lacked what they need"  # a page may be of several
FAILED_CHECK = "the result failed its check"
SECONDS = ["start_up_s", "set_up_s", "measuring_s"]
MEMORY = {"gpu_memory_bytes": "GPU memory", "memory_bytes": "memory"}
VERSIONS = ("torch", "triton", "driver")  # on the first screen; the records have all


def first_page(cells: pd.DataFrame) -> dict[str, Any]:
    """Return the facts of the first page: machine, versions, commit, counts by status, and the time taken."""
    seconds = cells[SECONDS]
    started = pd.to_datetime(cells["started_at"])
    ended = started + pd.to_timedelta(seconds[["set_up_s", "measuring_s"]].sum(axis=1), unit="s")
    return {
        "machines": sorted(cells["machine"].unique()),
        "versions": [
            f"{name} {version}"
            for name in VERSIONS
            for version in sorted(cells[name].astype(str).unique())
            if version not in ("none", "absent")
        ],
        "hosts": _hosts(cells),
        "memory": _memory(cells),
        "commits": sorted(cells["commit"].unique()),
        "counts": _counts(cells),
        "statuses": [status for status in STATUSES if (cells["status"] == status).any() or status == "ok"],
        "without_figures": int((~has_figures(cells["status"])).sum()),
        "cells": len(cells),
        "first_start": started.min().strftime("%Y-%m-%d %H:%M UTC"),
        "last_end": ended.max().strftime("%Y-%m-%d %H:%M UTC"),
        "total_s": float(seconds.sum().sum()),
        "wall_s": _covered_s(started - pd.to_timedelta(seconds["start_up_s"], unit="s"), ended),
        "waiting_s": float(cells["waiting_s"].sum()) if "waiting_s" in cells else 0.0,
        "measuring": float(seconds["measuring_s"].sum() / (seconds.sum().sum() or 1.0)),  # all may have failed
        "outcomes": _outcomes(cells),
        "failed": known(cells, "log").to_dict("records"),
        "on_busy_host": _on_busy_host(cells),
        "gpus": _gpus(cells),
    }


def _hosts(cells: pd.DataFrame) -> str:
    """Name the models of the hosts' CPUs, each with the numbers of cores that it had; how many kinds if several."""
    cores: dict[str, list[str]] = {}
    cpus = sorted(cells["cpu"].dropna().unique(), key=lambda cpu: (len(cpu), cpu))
    for cpu in cpus:
        model, _, count_of_cores = cpu.rpartition(", ")
        cores.setdefault(model, []).append(count_of_cores.removesuffix(" cores"))
    named = " / ".join(f"{model} with {listing(counts)} cores" for model, counts in sorted(cores.items()))
    return f"hosts of {len(cpus)} kinds: {named}" if len(cpus) > 1 else f"host: {named}" if cpus else ""


def _gpus(cells: pd.DataFrame) -> dict[str, int]:
    """Return how many GPUs measured each stage; nothing unless some stage used more than a cell of it takes."""
    told = known(cells, "gpus")
    if told.empty:
        return {}
    each = told["gpus"].str.split().groupby(told["stage"], sort=False)
    used, at_once = each.agg(lambda taken: len(set().union(*taken))), each.agg(lambda taken: max(map(len, taken)))
    return used.to_dict() if (used > at_once).any() else {}


def _memory(cells: pd.DataFrame) -> str:
    """Write how much memory each GPU has, or else the host; several where machines differ, nothing where unknown."""
    for name, words in MEMORY.items():
        if len(told := known(cells, name)):
            sizes = [f"{data_size(size)} ({number(size / 2**30)} GiB)" for size in told[name].sort_values()]
            return f"{' or '.join(dict.fromkeys(sizes))} of {words}"
    return ""


def _outcomes(cells: pd.DataFrame) -> list[dict[str, Any]]:
    """Return what became of the cells without figures: status, reason, how many, of which stages; the most first."""
    failed = cells[~has_figures(cells["status"])].astype({"reason": object}).fillna({"reason": ""})
    # These differ from cell to cell: their own section or table says them.
    for status, reason in (("skipped", LACKING), ("wrong", FAILED_CHECK)):
        failed["reason"] = failed["reason"].mask(failed["status"] == status, reason)
    groups = failed.groupby(["status", "reason"], sort=False)["stage"]
    found = groups.agg(size="size", stages=lambda stages: list(stages.unique())).reset_index()
    return found.sort_values("size", ascending=False, kind="stable").head(MOST_OUTCOMES).to_dict("records")


def _on_busy_host(cells: pd.DataFrame) -> list[str]:
    """Return the stage of each cell beside which other processes kept more than half of the cores busy."""
    return list(cells.loc[cells["host_busy"].astype(str) == "True", "stage"]) if "host_busy" in cells else []


def changed_since(cells: pd.DataFrame, outdated: Sequence[str]) -> list[str]:
    """Name what was measured by code that has changed since, by its digests: stages, then parts of others."""
    changed, parts = [], []
    for stage, digests in cells.groupby("stage", sort=False)["digest"]:
        older = digests.isin(outdated)
        if older.all():
            changed.append(stage)
        elif older.any():
            named = _named(cells["cell"][older.index[older]])
            parts.append(f"{older.sum()} of the {len(older)} cells of {stage}{named}")
    return ["all of it"] if changed == [*cells["stage"].unique()] else [*changed, *parts]


def _named(cells: pd.Series) -> str:
    """Name cells in brackets, if they are few."""
    return f" ({'; '.join(cells)})" if len(cells) <= MOST_NAMED else ""


def _covered_s(started: pd.Series, ended: pd.Series) -> float:
    """Return the seconds in which at least one cell was at work: pauses do not count, nor cells side by side twice."""
    spans = pd.DataFrame({"start": started, "end": ended}).sort_values("start")
    reached = spans["end"].cummax()
    pauses = (spans["start"].shift(-1) - reached).clip(lower=pd.Timedelta(0)).sum()
    return (reached.max() - spans["start"].min() - pauses).total_seconds()


def _counts(cells: pd.DataFrame) -> list[dict[str, Any]]:
    counts = pd.crosstab(cells["stage"], cells["status"])
    counts = counts.reindex(index=cells["stage"].unique(), columns=list(STATUSES), fill_value=0)
    return counts.reset_index().to_dict("records")
