"""Write a comparison of two runs as text: how the runs differ, what changed, and a summary in one line."""

import statistics
from functools import partial
from typing import Any

import pandas as pd

from pipeline.compare.judge import Comparison
from pipeline.compare.times import REPEATS, WITHIN, WORDS
from pipeline.instruments.sampling.verdict import SAME
from pipeline.report.reasons import brief
from pipeline.report.section import counted, data_size
from pipeline.report.tables import OUTCOME_WORDS, markdown, significant

MOST_LINES = 40


def write_comparison(comparison: Comparison, name_a: str, name_b: str, show_all: bool = False) -> str:
    """Write a comparison as Markdown that is also readable in a terminal.

    Without `show_all`, equal times are left out, and long tables are cut and say so.
    """
    parts = [f"A: {name_a}\nB: {name_b}", *comparison_parts(comparison, show_all), summary(comparison)]
    return "\n\n".join(part for part in parts if part)


def comparison_parts(comparison: Comparison, show_all: bool = False) -> list[str]:
    """Return what differs and what changed, a Markdown text each; empty ones where there is nothing to say."""
    short = partial(_short, cells=comparison.cells)
    return [
        _differences(comparison.differences),
        _part("Outcomes that changed", _outcome_table(short(comparison.outcomes)), show_all),
        _part("Cells only in A", comparison.only_in_a, show_all),
        _part("Cells only in B", comparison.only_in_b, show_all),
        _part("Rows only in A, of cells that both have", _row_table(short(comparison.rows_only_in_a)), show_all),
        _part("Rows only in B, of cells that both have", _row_table(short(comparison.rows_only_in_b)), show_all),
        _part("Times only in A, of rows that both have", _lost_table(short(comparison.times_only_in_a)), show_all),
        _part("Times that differ" if not show_all else "Times", time_table(comparison, show_all), show_all),
        _part("Peak memory that differs", _memory_table(short(comparison.memory)), show_all),
        _part("By stage", _stage_table(comparison.timed), show_all=True),
    ]


def summary(comparison: Comparison) -> str:
    """Say in one line how B compares with A."""
    outcomes, lost = len(comparison.outcomes), int(comparison.outcomes["worse"].sum())
    differing = len(comparison.memory.drop_duplicates(["stage", "cell"]))
    extras = {
        f"{counted(comparison.figures_lost, 'figure')} lost": comparison.figures_lost,
        f"{counted(outcomes, 'outcome')} changed, {lost} for the worse": outcomes,
        f"peak memory differs in {counted(differing, 'cell')}": differing,
        f"{counted(len(comparison.only_in_a), 'cell')} only in A": len(comparison.only_in_a),
        f"{counted(len(comparison.only_in_b), 'cell')} only in B": len(comparison.only_in_b),
        f"{counted(len(comparison.rows_only_in_a), 'row')} only in A": len(comparison.rows_only_in_a),
        f"{counted(len(comparison.rows_only_in_b), 'row')} only in B": len(comparison.rows_only_in_b),
        f"{counted(comparison.untimed, 'row')} without a time": comparison.untimed,
    }
    parts = [_compared(comparison.timed), *(words for words, count in extras.items() if count)]
    return f"B against A: {'; '.join(parts)}."


def _compared(timed: pd.DataFrame) -> str:
    if timed.empty:
        return "no time compared: no row has one in both"
    counts = timed["verdict"].value_counts()
    words = [f"{counts[verdict]} {verdict}" for verdict in WORDS if verdict in counts]
    mean = significant(statistics.geometric_mean(timed["ratio"]))
    return f"{counted(len(timed), 'time')} compared, {', '.join(words)}; geometric mean of B / A {mean}×"


def _differences(table: pd.DataFrame) -> str:
    if table.empty:
        return "Machine, software, code and settings are the same."
    return f"### What differs\n\n{markdown(table.rename(columns={'what': '', 'a': 'A', 'b': 'B'}))}"


def _part(title: str, table: pd.DataFrame, show_all: bool) -> str:
    if table.empty:
        return ""
    shown = table if show_all else table.head(MOST_LINES)
    left_out = len(table) - len(shown)
    more = f"\n\n… and {left_out} more; --all shows them." if left_out else ""
    return f"### {title}\n\n{markdown(shown)}{more}"


def _outcome_table(outcomes: pd.DataFrame) -> pd.DataFrame:
    words = {
        run: [_outcome(*pair) for pair in zip(outcomes[f"status_{run}"], outcomes[f"reason_{run}"], strict=True)]
        for run in "ab"
    }
    return outcomes[["stage", "cell", "row"]].assign(A=words["a"], B=words["b"])


def _row_table(rows: pd.DataFrame) -> pd.DataFrame:
    """List rows by cell, timed rows first."""
    shown = rows.sort_values("timed", ascending=False, kind="stable")
    return shown.assign(status=shown["status"].map(lambda status: _outcome(status, ""))).drop(columns="timed")


def _outcome(status: str, reason: str) -> str:
    word = OUTCOME_WORDS.get(status, status)
    return f"{word}: {brief(reason)}" if reason else word


def time_table(comparison: Comparison, show_all: bool) -> pd.DataFrame:
    """List the times, slower ones first, then by size of the difference; equal ones only with `show_all`.

    The range is the 95% interval of the ratio if there are repeats, else what the quartiles allow.
    """
    timed = _short(comparison.timed, comparison.cells)
    shown = timed if show_all else timed[~timed["verdict"].isin([SAME, WITHIN])]
    if shown.empty:
        return shown
    away = shown["ratio"].where(shown["ratio"] >= 1, 1 / shown["ratio"])
    rank = shown["verdict"].map(WORDS.index)
    shown = shown.assign(rank=rank, away=-away).sort_values(["rank", "away"], kind="stable")
    ratios = zip(shown["ratio"], shown["low"], shown["high"], strict=True)
    return pd.DataFrame(
        {
            "stage": shown["stage"],
            "cell": shown["cell"],
            "row": _time_names(shown),
            "A (ms)": shown["median_a"].map(significant),
            "B (ms)": shown["median_b"].map(significant),
            "B / A (range)": [f"{significant(r)} ({significant(low)}–{significant(high)})" for r, low, high in ratios],
            "verdict": shown["verdict"],
            "judged by": [_rule(line) for line in shown.to_dict("records")],
        }
    )


def _rule(line: dict[str, Any]) -> str:
    """Say what a verdict rests on, and how many repeats each run has."""
    counts = f", {len(line['medians_a'])} and {len(line['medians_b'])}" if line["rule"] == REPEATS else ""
    return line["rule"] + counts


def _lost_table(times: pd.DataFrame) -> pd.DataFrame:
    return times[["stage", "cell"]].assign(row=_time_names(times))


def _time_names(times: pd.DataFrame) -> pd.Series:
    """Name each time by its row and, unless it is the row's only kind of time, its quantity."""
    return (times["row"] + " " + times["quantity"].str.removesuffix("ms").str.rstrip("_")).str.strip()


def _memory_table(memory: pd.DataFrame) -> pd.DataFrame:
    shown = memory.sort_values("ratio", ascending=False, kind="stable")
    return pd.DataFrame(
        {
            "stage": shown["stage"],
            "cell": shown["cell"],
            "row": shown["row"],
            "of": shown["quantity"].str.removesuffix("_bytes").str.replace("_", " "),
            "A": shown["a"].map(data_size),
            "B": shown["b"].map(data_size),
            "B / A": shown["ratio"].map(significant),
        }
    )


def _short(rows: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Drop from each stage's cell names the axes that have a single value over both runs.

    An axis with a single value only in these rows stays: the name must still identify the cell.
    """
    short = dict(zip(cells.itertuples(index=False, name=None), _varying_axes(cells), strict=True))
    return rows.assign(cell=[short[pair] for pair in zip(rows["stage"], rows["cell"], strict=True)])


def _varying_axes(cells: pd.DataFrame) -> pd.Series:
    def varying(names: pd.Series) -> pd.Series:
        if len(names) == 1:
            return names
        axes = names.str.split(" ", expand=True)
        return axes.loc[:, axes.nunique(dropna=False) > 1].fillna("").agg(" ".join, axis=1).str.strip()

    return cells.groupby("stage", sort=False)["cell"].transform(varying)


def _stage_table(timed: pd.DataFrame) -> pd.DataFrame:
    """Summarise each stage by quantity: GPU times may agree where times of host calls do not."""
    lines = [
        {
            "stage, quantity": f"{stage}, {quantity}",
            "times": len(group),
            **{word: int((group["verdict"] == word).sum()) for word in WORDS if word in set(timed["verdict"])},
            "B / A, geometric mean": significant(statistics.geometric_mean(group["ratio"])),
        }
        for (stage, quantity), group in timed.groupby(["stage", "quantity"], sort=False)
    ]
    return pd.DataFrame(lines)
