"""The write-up: a first page on how its figures came about, and the stages' sections under it."""

import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.cells import sweep
from pipeline.cells.record import write_text
from pipeline.cells.tabulate import SOFTWARE
from pipeline.errors import UserError
from pipeline.report.rows import read_rows
from pipeline.report.section import render

TEMPLATE = Path(__file__).parent / "writeup.md.j2"
# What a section wants on the first page: it stands between these, above the rest of the section.
FINDINGS = re.compile(r"<!-- findings -->\n(.*?)\n<!-- end of findings -->", re.DOTALL)
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
STATUSES = ("ok", "unstable", "skipped", "oom")


def write_section(stage: str, tables: Sequence[Path], beside: Sequence[Path], out: Path, figures: Path) -> None:
    """Write a stage's section and draw its figures, from its tables and those of the stages that it reads too.

    beside: tables of other stages, each in the folder of its stage.
    """
    build = importlib.import_module(f"pipeline.stages.{stage}.section").build
    others = {name: [path for path in beside if path.parent.name == name] for name in sweep.stages_beside(stage)}
    figures.mkdir(parents=True, exist_ok=True)
    rows_beside = [{name: _read_all(paths) for name, paths in others.items()}] if others else []
    write_text(out, build(_read_all(tables), figures, *rows_beside))


def write_writeup(
    sections: Sequence[Path], cells: Sequence[Path], scale: str, code: Mapping[str, str], out: Path
) -> None:
    """Write the write-up from the rendered sections and the tables of cells.

    scale: which cells were asked for; empty where what is there is written up, whatever asked for it.
    code: the digest of the code that measures each stage now; a stage may be left out.
    """
    lines = _read_all(cells)
    if lines.empty:
        raise UserError("there is nothing to write up: no cell has been measured")
    texts = [path.read_text() for path in sections]
    facts = first_page(lines) | {
        "scale": scale,
        "changed": changed_since(lines, code),
        "sections": texts,
        "findings": findings(texts),
    }
    write_text(out, render(TEMPLATE, facts))


def findings(sections: Sequence[str]) -> list[dict[str, str]]:
    """Return what each section wants on the first page, with its title and the anchor of its heading."""
    found = [(HEADING.search(text), FINDINGS.search(text)) for text in sections]
    return [
        {"title": heading[1], "anchor": _anchor(heading[1]), "text": finding[1].strip()}
        for heading, finding in found
        if finding and finding[1].strip()
    ]


def _anchor(heading: str) -> str:
    """Return the anchor that Markdown renderers make of a heading: lower case, no punctuation, spaces to hyphens."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def first_page(cells: pd.DataFrame) -> dict[str, Any]:
    """Return the facts of the first page: machine, versions, commit, counts by status, and the time taken."""
    seconds = cells[["start_up_s", "set_up_s", "measuring_s"]]
    started = pd.to_datetime(cells["started_at"])
    ended = started + pd.to_timedelta(seconds[["set_up_s", "measuring_s"]].sum(axis=1), unit="s")
    return {
        "machines": sorted(cells["machine"].unique()),
        "versions": {name: sorted(cells[name].astype(str).unique()) for name in SOFTWARE},
        "commits": sorted(cells["commit"].unique()),
        "counts": _counts(cells),
        "statuses": STATUSES,
        "cells": len(cells),
        "first_start": started.min().strftime("%Y-%m-%d %H:%M UTC"),
        "last_end": ended.max().strftime("%Y-%m-%d %H:%M UTC"),
        "total_s": float(seconds.sum().sum()),
        "wall_s": _covered_s(started, ended),
        "shares_pct": {name: 100 * float(seconds[name].sum() / seconds.sum().sum()) for name in seconds},
        "not_ok": cells[cells["status"] != "ok"][["stage", "cell", "status", "reason"]].to_dict("records"),
    }


def changed_since(cells: pd.DataFrame, code: Mapping[str, str]) -> list[str]:
    """List the stages of which a cell was measured by code of another digest than the stage's has now."""
    stages = [stage for stage in cells["stage"].unique() if stage in code]
    return [stage for stage in stages if (cells.loc[cells["stage"] == stage, "digest"] != code[stage]).any()]


def _covered_s(started: pd.Series, ended: pd.Series) -> float:
    """Return the seconds in which at least one cell was at work: pauses do not count, nor cells side by side twice."""
    spans = pd.DataFrame({"start": started, "end": ended}).sort_values("start")
    reached = spans["end"].cummax()
    pauses = (spans["start"].shift(-1) - reached).clip(lower=pd.Timedelta(0)).sum()
    return (reached.max() - spans["start"].min() - pauses).total_seconds()


def _counts(cells: pd.DataFrame) -> list[dict[str, Any]]:
    counted = cells.groupby("stage")["status"].value_counts().unstack(fill_value=0)
    counted = counted.reindex(index=cells["stage"].unique(), columns=list(STATUSES), fill_value=0)
    return [{"stage": stage, **line.astype(int).to_dict()} for stage, line in counted.iterrows()]


def _read_all(paths: Sequence[Path]) -> pd.DataFrame:
    return pd.concat(map(read_rows, paths), ignore_index=True) if paths else pd.DataFrame()
