"""The sharding section: its tables and figure, and a template that says what they show."""

from pathlib import Path

import pandas as pd

from pipeline.report.section import render
from pipeline.report.side_by_side import training_setting
from pipeline.report.table_rows import ok
from pipeline.report.tables import (
    OUTCOME_WORDS,
    fold,
    markdown,
    markdown_folded_if_long,
    median_cells,
    pivot,
    significant,
)
from pipeline.stages.sharding.cell import KINDS, PHASES
from pipeline.stages.sharding.report import baselines, findings
from pipeline.stages.sharding.report.figures import draw_all
from pipeline.stages.sharding.report.selection import MOMENT_WORDS, completed, kinds, memory, phases, steps, traffic

TEMPLATE = Path(__file__).parent / "section.md.j2"
SHOWN_MOMENTS = ("initialised", "before_step", "after_step")
KIND_TITLES = {"parameters": "parameters", "gradients": "gradients", "optimizer_state": "optimizer state"}


def build(rows: pd.DataFrame, figures_dir: Path) -> str:
    """Write the section's Markdown from the rows of all its tables, and its figure as SVG into a folder."""
    rows = completed(rows)
    facts = {"missing": _missing(rows), "measured": not ok(steps(rows)).empty}
    if facts["measured"]:
        facts |= _facts(rows, figures_dir)
    return render(TEMPLATE, facts)


def _facts(rows: pd.DataFrame, figures_dir: Path) -> dict:
    unit, scale = ("GB", 1e9) if memory(ok(rows))["measured_bytes"].max() >= 1e9 else ("MB", 1e6)
    return {
        "setting": training_setting(ok(rows)),
        "cells": [_in_unit(cell, unit, scale) for cell in findings.by_cell(rows)],
        "figures": draw_all(rows, figures_dir),
        "tables": {
            "memory": _memory_table(rows, unit, scale),
            "peaks": _peak_table(rows, unit, scale),
            "moments": _moments_table(rows, unit, scale),
            "times": _time_table(rows),
            "traffic": _traffic_table(rows, unit, scale),
        },
        "others": baselines.beside_ours(rows),
    }


def _in_unit(cell: dict, unit: str, scale: float) -> dict:
    """Add a way to write bytes in the section's unit to what is said of a cell."""
    return cell | {"size": lambda byte_count: f"{significant(byte_count / scale)} {unit}"}


def _scaled(values: pd.Series, scale: float) -> pd.Series:
    return (values / scale).map(significant).replace("n/a", "–")


def _memory_table(rows: pd.DataFrame, unit: str, scale: float) -> str:
    """Write what each optimizer's rank holds at the moments that the question names, by kind."""
    found = kinds(rows).reset_index()
    found = found[found["moment"].isin(SHOWN_MOMENTS)]
    columns = [*KINDS, "other", "allocated", "peak"] if found["allocated"].notna().any() else [*KINDS, "counted"]
    titles = KIND_TITLES | {"counted": "sum", "peak": "peak on the way there"}
    lines = found.assign(
        who=found["cell_name"] + ", " + found["optimizer"],
        moment=found["moment"].map(MOMENT_WORDS),
        **{column: _scaled(found[column], scale) for column in columns},
    )
    table = lines[["who", "moment", *columns]].rename(columns=titles)
    return markdown(table.rename(columns={"who": "optimizer", "moment": f"moment (figures in {unit})"}))


def _moments_table(rows: pd.DataFrame, unit: str, scale: float) -> str:
    """Write the predictions for initialisation and a warm step beside what was measured, folded."""
    found = memory(ok(rows)).dropna(subset=["predicted_bytes"])
    found = found[found["moment"].isin(SHOWN_MOMENTS) & found["kind"].isin([*KINDS, "allocated", "peak"])]
    # Relative to what was counted; nothing predicted and nothing counted agree.
    error = (found["predicted_bytes"] - found["measured_bytes"]) / found["measured_bytes"].where(
        found["measured_bytes"] > 0, 1
    )
    table = pd.DataFrame(
        {
            "precision": found["cell_name"],
            "optimizer": found["optimizer"],
            "moment": found["moment"].map(MOMENT_WORDS),
            "kind": found["kind"].str.replace("_", " "),
            f"predicted ({unit})": _scaled(found["predicted_bytes"], scale),
            f"measured ({unit})": _scaled(found["measured_bytes"], scale),
            "predicted − measured": error.map(lambda share: f"{significant(100 * share, 2)}%"),
        }
    )
    return fold(f"{len(table)} predictions beside what was measured", markdown(table))


def _peak_table(rows: pd.DataFrame, unit: str, scale: float) -> str:
    """Write each optimizer's peak over a warm step, predicted and measured; empty on a CPU."""
    lines = []
    for name, cell in rows.groupby("cell_name", sort=False):
        for optimizer, line in findings.peaks(cell).iterrows():
            lines.append(
                {
                    "precision": name,
                    "optimizer": optimizer,
                    f"predicted ({unit})": significant(line["predicted_bytes"] / scale),
                    f"measured ({unit})": significant(line["measured_bytes"] / scale),
                    "predicted − measured": f"{significant(100 * line['error'], 2)}%",
                    f"asked for ({unit})": significant(line["requested_bytes"] / scale),
                    "predicted − asked for": f"{significant(100 * line['requested_error'], 2)}%",
                    "falls": "in the optimizer" if line["where"] == "after_step" else "in forward and backward",
                }
            )
    return markdown(pd.DataFrame(lines)) if lines else ""


def _time_table(rows: pd.DataFrame) -> str:
    # "optimizer" is the name of a phase too, and becomes a column.
    rows = rows.rename(columns={"optimizer": "who"})
    whole, parts, keys = steps(rows), phases(ok(rows)), ["cell_name", "who"]
    times = pivot(parts, keys, "phase", parts["median_ms"].map(significant))
    found = whole[keys].assign(step=median_cells(whole)).merge(times, on=keys, how="left")
    titles = {"cell_name": "precision", "who": "with", "step": "step, median [quartiles]"}
    return markdown(found[[*keys, "step", *PHASES]].fillna("–").rename(columns=titles))


def _traffic_table(rows: pd.DataFrame, unit: str, scale: float) -> str:
    found = traffic(rows)
    found = found[found["calls"] > 0]
    table = pd.DataFrame(
        {
            "precision": found["cell_name"],
            "optimizer": found["optimizer"],
            "collective": found["collective"],
            "calls": found["calls"].map("{:,.0f}".format),
            f"bytes predicted ({unit})": _scaled(found["predicted_bytes"], scale),
            f"bytes counted ({unit})": _scaled(found["measured_bytes"], scale),
            f"each rank sends at least ({unit})": _scaled(found["sent_bytes"], scale),
        }
    )
    return markdown(table)


def _missing(rows: pd.DataFrame) -> str:
    """List the optimizers that are not ok, those alike in one line; empty if none."""
    failed = findings.outcomes(rows)
    if failed.empty:
        return ""
    failed["status"] = failed["status"].map(OUTCOME_WORDS)
    failed["optimizer"] = failed["optimizer"].map(", ".join)
    table = failed[["cell_name", "optimizer", "status", "reason"]]
    table = table.rename(columns={"cell_name": "precision", "optimizer": "optimizers"})
    return markdown_folded_if_long(table, f"The {len(table)} lines of what is missing or unstable")
