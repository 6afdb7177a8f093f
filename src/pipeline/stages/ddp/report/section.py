"""The ddp section: its tables and figures, and a template that says what they show."""

from pathlib import Path

import pandas as pd

from pipeline.report.section import render
from pipeline.report.table_rows import ok
from pipeline.report.tables import (
    OUTCOME_WORDS,
    markdown,
    markdown_folded_if_long,
    median_cells,
    pivot,
    significant,
)
from pipeline.stages.ddp.cell import PHASES
from pipeline.stages.ddp.report import baselines, bucket_model, findings
from pipeline.stages.ddp.report.figures import draw_all
from pipeline.stages.ddp.report.selection import captures, completed, phases, steps

TEMPLATE = Path(__file__).parent / "section.md.j2"


def build(rows: pd.DataFrame, figures_dir: Path, beside: dict[str, pd.DataFrame]) -> str:
    """Write the section's Markdown from the rows of all its tables, and its figures as SVG into a folder.

    beside: the rows of the stage allreduce, from which the overhead model takes its cost of a call and of a byte.
    """
    rows = completed(rows)
    facts = {"missing": _missing(rows), "measured": not ok(steps(rows)).empty}
    if facts["measured"]:
        facts |= _facts(rows, figures_dir, beside["allreduce"])
    return render(TEMPLATE, facts)


def _facts(rows: pd.DataFrame, figures_dir: Path, allreduce: pd.DataFrame) -> dict:
    cells = findings.by_cell(rows)
    models = {}
    for cell in cells:
        own = rows[rows["cell_name"] == cell["name"]]
        cell["model"] = bucket_model.verdict(own, allreduce)
        if cell["model"]:
            cell["fits"] = bucket_model.fits(own, allreduce)
            models[cell["name"]] = bucket_model.beside_measured(own, cell["fits"]["cost"].iloc[0])
    return {
        "setting": findings.setting(rows),
        "cells": cells,
        "clocks": findings.clocks(rows),
        "profilers": captures(ok(rows))["clock"].unique(),
        "waits_in_backward": findings.waits_in_backward(rows),
        "figures": draw_all(rows, models, figures_dir),
        "tables": {
            "main": _main_table(rows),
            "communication": _communication_table(rows),
            "captures": _capture_table(rows),
            "fits": _fit_table(cells),
            "model": _model_table(models),
        },
        "others": baselines.beside_ours(rows),
    }


def _main_table(rows: pd.DataFrame) -> str:
    """Write step and phases, a line a variant and cell; a phase that a variant lacks is a dash."""
    whole = steps(rows)
    keys = ["cell_name", "variant"]
    found = whole[keys].assign(step=median_cells(whole))
    parts = phases(ok(rows))
    if not parts.empty:
        cells = parts["median_ms"].map(significant)
        found = found.merge(
            pivot(parts, ["cell_name", "variant"], "phase", cells), on=["cell_name", "variant"], how="left"
        )
    columns = {"step": "step, median [quartiles]"} | {name: name for name in PHASES if name in found}
    table = found[[*keys, *columns]].rename(columns=columns).fillna("–").replace("", "–")
    return markdown(table.rename(columns={"cell_name": "precision"}))


def _communication_table(rows: pd.DataFrame) -> str:
    """Write what each variant's communication adds, in how many all-reduces, and its memory."""
    texts = []
    for name, cell in rows.groupby("cell_name", sort=False):
        whole = ok(steps(cell)).set_index("variant")
        if whole.empty:
            continue
        beyond = findings.overheads(whole).reindex(whole.index)
        base_ms = whole["median_ms"].get("no communication", float("nan"))
        table = pd.DataFrame(
            {
                "precision": name,
                "variant": whole.index,
                "all-reduces": whole["all_reduces"].map(lambda count: f"{count:,.0f}"),
                "MB each, mean": _mean_mb(whole),
                "beyond no communication (ms)": beyond.map(significant),
                "share of such a step": (beyond / base_ms).map(lambda share: f"{significant(100 * share, 2)}%"),
                "peak memory (GB)": (whole["peak_bytes"].astype(float) / 1e9).map(significant),
            }
        )
        texts.append(table)
    table = pd.concat(texts)
    unknown = [column for column in table if (table[column].isin(["n/a", "n/a%"])).all()]
    table = table.drop(columns=unknown).replace({"n/a": "–", "n/a%": "–"})
    return markdown_folded_if_long(table, "Step time beyond no communication, all-reduces and memory, by variant")


def _mean_mb(whole: pd.DataFrame) -> pd.Series:
    """Write the mean size of an all-reduce in MB of 2^20 bytes, as the bucket sizes are."""
    return (whole["all_reduce_bytes"] / whole["all_reduces"].where(whole["all_reduces"] > 0) / 2**20).map(significant)


def _capture_table(rows: pd.DataFrame) -> str:
    found = captures(ok(rows))
    if found.empty:
        return ""
    names = {
        "communication (ms)": "communication_ms",
        "computation (ms)": "computation_ms",
        "both at once (ms)": "hidden_ms",
        "hidden (%)": "hidden_pct",
    }
    table = found[["cell_name", "variant"]].assign(
        **{title: found[column].map(significant) for title, column in names.items()}
    )
    table = table.rename(columns={"cell_name": "precision"})
    return markdown_folded_if_long(table, "Communication and computation in one captured step, by variant")


def _fit_table(cells: list[dict]) -> str:
    """Write the fits and the optima that follow from them, a line a cell and timing."""
    lines = [line.assign(cell_name=cell["name"]) for cell in cells if cell["model"] for line in [cell["fits"]]]
    if not lines:
        return ""
    fits = pd.concat(lines)
    return markdown(
        pd.DataFrame(
            {
                "precision": fits["cell_name"],
                "all-reduces timed": fits["timing"].replace({"burst": "in bursts", "single": "one by one"}),
                "overhead a call, o (µs)": fits["call_overhead_us"].map(significant),
                "bandwidth, w (GB/s)": fits["gb_per_s"].map(significant),
                "best number of buckets": fits["buckets"].map(significant),
                "best bucket size (MB)": fits["bucket_mb"].map(significant),
                "overhead there (ms)": fits["overhead_ms"].map(significant),
            }
        )
    )


def _model_table(models: dict[str, pd.DataFrame]) -> str:
    if not models:
        return ""
    found = pd.concat([model.assign(cell_name=name) for name, model in models.items()])
    return markdown(
        pd.DataFrame(
            {
                "precision": found["cell_name"],
                "bucket size (MB)": found["bucket_size_mb"],
                "buckets": found["buckets"],
                "measured (ms)": found["measured_ms"].map(significant),
                "model, equal times (ms)": found["equal_ms"].map(significant),
                "model, measured backward (ms)": found["pipelined_ms"].map(significant),
            }
        )
    )


def _missing(rows: pd.DataFrame) -> str:
    """List the variants that are not ok, those alike in one line; empty if none."""
    failed = findings.outcomes(rows)
    if failed.empty:
        return ""
    failed["status"] = failed["status"].map(OUTCOME_WORDS)
    failed["variant"] = failed["variant"].map(", ".join)
    table = failed[["cell_name", "variant", "status", "reason"]].rename(
        columns={"cell_name": "precision", "variant": "variants"}
    )
    return markdown_folded_if_long(table, f"The {len(table)} lines of what is missing or unstable")
