"""The attention section: its tables and figures, and a template that says what they show."""

from pathlib import Path

import pandas as pd

from pipeline.report.reasons import without_own_numbers
from pipeline.report.section import data_size, render
from pipeline.report.table_rows import known, ok
from pipeline.report.tables import (
    OUTCOME_WORDS,
    fold,
    markdown,
    markdown_folded_if_long,
    mean_std_cells,
    median_cells,
    pivot,
    significant,
    with_outcomes,
)
from pipeline.stages.attention.cell import MODES
from pipeline.stages.attention.report import baselines, findings
from pipeline.stages.attention.report.figures import draw_all
from pipeline.stages.attention.report.selection import (
    compile_gains,
    host,
    memory_of,
    ordered,
    problems,
    without_workspace,
)

TEMPLATE = Path(__file__).parent / "section.md.j2"
READABLE = {"seq_len": "sequence length", "phase": "pass"}
PROBLEM = ["head_dim", "seq_len"]


def build(rows: pd.DataFrame, figures_dir: Path) -> str:
    """Write the section's Markdown from the rows of all its tables, and its figures as SVG into a folder."""
    rows = ordered(rows)
    facts = {"missing": _missing(rows), "measured": not ok(rows[rows["mode"] == "eager"]).empty}
    if facts["measured"]:
        facts |= _facts(rows, figures_dir)
    return render(TEMPLATE, facts)


def _facts(rows: pd.DataFrame, figures_dir: Path) -> dict:
    pairs = baselines.beside_ours(rows)
    memory = memory_of(rows)
    example = findings.worked_example(rows, memory) if memory else None
    return {
        "setting": findings.setting(rows),
        "growth": findings.growth(rows),
        "memory_end": findings.memory_end(rows, memory) if memory else None,
        "example": example,
        "saved": [found for mode in MODES if (found := findings.saved(rows, mode))],
        "allocated": findings.allocated(rows),
        "compilation": findings.compilation(rows),
        "figures": draw_all(rows, figures_dir),
        "tables": {
            "eager": _times_table(rows, "eager"),
            "medians": _medians(rows),
            "memory": _memory_table(rows),
            "example": _example_table(example) if example else "",
            "compiled": _compiled_tables(rows),
        },
        "others": [baselines.summary_table(pairs), *baselines.full_tables(pairs)] if len(pairs) else [],
        "others_ran_out": baselines.ran_out(rows),
    }


def _times_table(rows: pd.DataFrame, mode: str) -> str:
    """Write mean ± standard deviation of both passes, and the memory in use before and at most during backward."""
    times = host(rows)[host(rows)["mode"] == mode]
    table = pivot(times, PROBLEM, "phase", mean_std_cells(times))
    memory = problems(rows, mode).set_index(PROBLEM)
    for title, column in {"before backward": "before_backward_bytes", "peak": "peak_bytes"}.items():
        if column in memory and memory[column].notna().any():
            table[title] = [_size(memory[column].get(tuple(key))) for key in table[PROBLEM].to_numpy()]
    return markdown(table.rename(columns=READABLE))


def _size(value: float | None) -> str:
    return "–" if value is None or pd.isna(value) else data_size(value)


def _medians(rows: pd.DataFrame) -> str:
    times = host(rows)
    table = pivot(times, ["mode", *PROBLEM], "phase", median_cells(times))
    return fold("Medians and quartiles in ms, eager and compiled", markdown(table.rename(columns=READABLE)))


def _memory_table(rows: pd.DataFrame) -> str:
    """Write what was counted, without workspaces, beside what the formulas of eager attention say."""
    lines = []
    for mode in MODES:
        for _, row in known(without_workspace(problems(rows, mode)), "model_peak_bytes").iterrows():
            counted = {
                title: f"{_size(row.get(column))} / {data_size(row[f'model_{column}'])}"
                for title, column in (
                    ("saved for backward", "saved_bytes"),
                    ("in use before backward", "before_backward_bytes"),
                    ("peak", "peak_bytes"),
                )
            }
            lines.append({"mode": mode, "head_dim": row["head_dim"], "sequence length": row["seq_len"], **counted})
    table = pd.DataFrame(lines)
    title = "Memory without the libraries' workspaces, counted / by the formulas of eager attention"
    return fold(title, markdown(table)) if lines else ""


def _example_table(example: dict) -> str:
    items = [{"item": item, "size": data_size(size)} for item, size in example["lines"].items()]
    items.append({"item": "together: the peak", "size": data_size(example["peak_bytes"])})
    return markdown(pd.DataFrame(items))


def _compiled_tables(rows: pd.DataFrame) -> str:
    """Write eager and compiled times side by side, and their ratios; empty where nothing was compiled."""
    gains = compile_gains(rows)
    if ok(gains).empty:
        return ""
    times = host(rows).assign(column=lambda table: table["mode"] + " " + table["phase"])
    table = pivot(times, PROBLEM, "column", mean_std_cells(times))
    numbers = zip(gains["median_ratio"], gains["q1_ratio"], gains["q3_ratio"], strict=True)
    cells = [f"{significant(middle)} ({significant(low)}–{significant(high)})" for middle, low, high in numbers]
    ratios = with_outcomes(pd.Series(cells, index=gains.index, dtype=object), gains)
    for name, group in gains.groupby("phase", sort=False):
        by_problem = pd.Series(ratios[group.index].to_numpy(), index=pd.MultiIndex.from_frame(group[PROBLEM]))
        table[f"ratio, {name}"] = [by_problem.get(tuple(key), "") for key in table[PROBLEM].to_numpy()]
    return markdown(table.rename(columns=READABLE))


def _missing(rows: pd.DataFrame) -> str:
    """List what is not ok, those alike but for the length in one line; empty if nothing is."""
    failed = host(rows)[host(rows)["status"] != "ok"].fillna({"reason": ""})
    if failed.empty:
        return ""
    failed = failed.assign(status=failed["status"].map(OUTCOME_WORDS), reason=without_own_numbers(failed["reason"]))
    keys = ["mode", "phase", "head_dim", "status", "reason"]
    table = failed.groupby(keys, sort=False)["seq_len"].agg(lambda found: ", ".join(map(str, found))).reset_index()
    table = table[["mode", "phase", "head_dim", "seq_len", "status", "reason"]]
    return markdown_folded_if_long(table.rename(columns=READABLE), f"The {len(table)} lines of what is not ok")
