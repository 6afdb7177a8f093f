"""Compare two runs: their machines, software and settings, and row by row which is faster."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.cells import fields
from pipeline.cells.stage import Stages
from pipeline.compare.ceilings import ceilings_of_both
from pipeline.compare.models import models_of_both
from pipeline.compare.runs import Record
from pipeline.compare.times import KEYS, cell_words, figures, judged, named_rows, repeat_spreads
from pipeline.report.section import counted
from pipeline.report.table_rows import has_figures

# A stage's code as a fact; `code of mine` is that of an implementation of the user's own.
CODE = "code"


@dataclass(frozen=True)
class Comparison:
    """The result of comparing run B with run A, most of it tables with these columns.

    Repeats of a cell count as one cell.
    machines: the names of A's machine and of B's; tolerance: the fraction given;
    models: those of the first screen, as `models_of_both` returns them (pipeline.compare.models);
    ceilings: what both machines do at most, as `ceilings_of_both` returns it (pipeline.compare.ceilings);
    differences (machine, software, code and settings that differ): stage ("" for the machine's), what, a, b;
    timed: KEYS, quantity, the columns of `figures` of a and b, and those that `judged` adds (pipeline.compare.times);
    memory (peaks that differ by more than the tolerance): KEYS, quantity, a and b in bytes, ratio; rows of a cell with
    the same peaks appear once, without a row name if they are all of the cell's rows;
    outcomes (rows whose outcome changed): KEYS, status_ and reason_ of a and b, worse (whether figures were lost);
    only_in_a, only_in_b: stage and cell; rows_only_in_a, rows_only_in_b (of cells in both): KEYS, status and timed
    (whether the row has a time); times_only_in_a (of rows with figures in both): KEYS and quantity;
    cells: stage and cell of both runs.
    """

    machines: tuple[str, str]
    tolerance: float
    models: pd.DataFrame
    ceilings: pd.DataFrame
    differences: pd.DataFrame
    timed: pd.DataFrame
    memory: pd.DataFrame
    outcomes: pd.DataFrame
    only_in_a: pd.DataFrame
    only_in_b: pd.DataFrame
    rows_only_in_a: pd.DataFrame
    rows_only_in_b: pd.DataFrame
    times_only_in_a: pd.DataFrame
    cells: pd.DataFrame

    @property
    def figures_lost(self) -> int:
        """Count the rows and times with figures in A but not in B, in cells that both have."""
        return int(self.outcomes["worse"].sum() + self.rows_only_in_a["timed"].sum() + len(self.times_only_in_a))

    @property
    def is_worse(self) -> bool:
        """Tell whether B is slower than A by more than the tolerance in any row, or has lost figures."""
        return bool(self.figures_lost or self.timed["worse"].any())

    @property
    def failure(self) -> str:
        """Say why `--fail-if-slower` fails: B is worse than A, or no time could be compared; empty where it passes."""
        slower = int(self.timed["worse"].sum())
        reasons = {
            f"{counted(slower, 'time')} slower by more than {100 * self.tolerance:g}%": slower,
            f"{counted(self.figures_lost, 'figure')} lost": self.figures_lost,
            "no time is in both": self.timed.empty,
        }
        return ", ".join(reason for reason, holds in reasons.items() if holds)


def compare_runs(a: Iterable[Record], b: Iterable[Record], stages: Stages, tolerance: float) -> Comparison:
    """Compare the rows of two runs; differences of medians below the fraction `tolerance` fail nothing."""
    a, b = list(a), list(b)
    rows_a, rows_b = figures(a, stages), figures(b, stages)
    both = rows_a.merge(rows_b, on=[*KEYS, "quantity"], suffixes=("_a", "_b"))
    have_times = both["median_a"].notna() & both["median_b"].notna()
    return Comparison(
        machines=(_machine(a), _machine(b)),
        tolerance=tolerance,
        models=models_of_both(a, b, stages),
        ceilings=ceilings_of_both(a, b, stages),
        differences=_differences(a, b),
        timed=judged(both[have_times], repeat_spreads(rows_a, rows_b), tolerance),
        memory=_memory(a, b, stages, tolerance),
        outcomes=_outcomes(rows_a, rows_b),
        only_in_a=_only_in_first(rows_a, rows_b),
        only_in_b=_only_in_first(rows_b, rows_a),
        rows_only_in_a=_rows_only_in_first(rows_a, rows_b),
        rows_only_in_b=_rows_only_in_first(rows_b, rows_a),
        times_only_in_a=_times_only_in_first(rows_a, rows_b),
        cells=pd.concat([rows_a, rows_b])[["stage", "cell"]].drop_duplicates(ignore_index=True),
    )


def _memory(a: list[Record], b: list[Record], stages: Stages, tolerance: float) -> pd.DataFrame:
    both = _peaks(a, stages).merge(_peaks(b, stages), on=[*KEYS, "quantity"], suffixes=("_a", "_b"))
    both = both.rename(columns={"bytes_a": "a", "bytes_b": "b"})
    both = both.drop_duplicates([name for name in both if name != "row"])
    several = both.duplicated(["stage", "cell", "quantity"], keep=False)
    both = both.assign(row=both["row"].where(several, ""), ratio=both["b"] / both["a"])
    differs = (both["ratio"] > 1 + tolerance) | (both["ratio"] * (1 + tolerance) < 1)
    return both[differs].reset_index(drop=True)


def _peaks(records: list[Record], stages: Stages) -> pd.DataFrame:
    """Return one line per memory peak of each row: the highest over its repeats."""
    lines = [
        {
            "stage": record["stage"],
            "cell": cell_words(record, stages),
            "row": name,
            "quantity": quantity,
            "bytes": value,
        }
        for record in records
        for name, row in named_rows(record, stages)
        for quantity, value in row.items()
        if value and re.fullmatch(r"peak(_\w+)?_bytes", quantity)
    ]
    names = [*KEYS, "quantity"]
    peaks = pd.DataFrame(lines, columns=[*names, "bytes"])
    return peaks.groupby(names, sort=False, as_index=False).max()


def _outcomes(rows_a: pd.DataFrame, rows_b: pd.DataFrame) -> pd.DataFrame:
    columns = [*KEYS, "status", "reason"]
    first_a, first_b = (rows[columns].drop_duplicates(KEYS) for rows in (rows_a, rows_b))
    both = first_a.merge(first_b, on=KEYS, suffixes=("_a", "_b"))
    changed = both[both["status_a"] != both["status_b"]]
    had, has = (has_figures(changed[f"status_{run}"]) for run in "ab")
    return changed.assign(worse=had & ~has).reset_index(drop=True)


def _only_in_first(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    cells = first[["stage", "cell"]].drop_duplicates()
    return cells[~_occurs(cells, second)].reset_index(drop=True)


def _rows_only_in_first(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that the second run lacks in cells that it has."""
    rows = first.assign(timed=first["median"].notna())[[*KEYS, "status", "timed"]].drop_duplicates(KEYS)
    lacking = _occurs(rows[["stage", "cell"]], second) & ~_occurs(rows[KEYS], second)
    return rows[lacking].reset_index(drop=True)


def _times_only_in_first(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Return the times that the second run lacks in rows for which it has figures."""
    times, with_figures = first[first["median"].notna()], second[has_figures(second["status"])]
    names = [*KEYS, "quantity"]
    lacking = _occurs(times[KEYS], with_figures) & ~_occurs(times[names], second[second["median"].notna()])
    return times.loc[lacking, names].reset_index(drop=True)


def _occurs(lines: pd.DataFrame, table: pd.DataFrame) -> np.ndarray:
    """Tell for each line whether the table has one with the same values."""
    lines, known = (pd.MultiIndex.from_frame(rows[list(lines)]) for rows in (lines, table))
    return lines.isin(known)


def _machine(records: list[Record]) -> str:
    return ", ".join(sorted({record["machine"]["kind"] for record in records}))


def _differences(a: list[Record], b: list[Record]) -> pd.DataFrame:
    """List machine, software, code and settings that differ; code and settings only of stages that both have."""
    facts_a, facts_b = _facts_of_run(a), _facts_of_run(b)
    shared = {record["stage"] for record in a} & {record["stage"] for record in b}
    names = [name for name in dict.fromkeys([*facts_a, *facts_b]) if name[0] in ("", *shared)]
    lines = [(*name, _listed(facts_a, name), _listed(facts_b, name)) for name in names]
    table = pd.DataFrame(lines, columns=["stage", "what", "a", "b"])
    return table[table["a"] != table["b"]].reset_index(drop=True)


def _listed(facts: dict[tuple[str, str], set[str]], name: tuple[str, str]) -> str:
    return ", ".join(sorted(facts.get(name, ()))) or "–"


def _facts_of_run(records: list[Record]) -> dict[tuple[str, str], set[str]]:
    """Collect all values of each fact in a run, by stage ("" for facts of the machine) and name."""
    values: dict[tuple[str, str], set[str]] = {}
    for record in records:
        machine, stage = record["machine"], record["stage"]
        facts = {
            ("", "machine"): machine["kind"],
            ("", "cpu"): machine["cpu"]["model"],
            ("", "logical cores"): machine["cpu"]["logical_cores"],
            ("", "GPUs"): len(machine["gpus"]),
            ("", "threads"): machine["threads"],
            ("", "os"): machine["os"],
            **{("", name): version for name, version in machine["software"].items()},
            ("", "commit"): record["code"]["commit"],
            (stage, CODE): record["code"]["digest"],
            **{(stage, name): value for name, value in record["settings"].items()},
            **{(stage, f"{CODE} of {own['name']}"): own["digest"] for own in record.get("subjects", [])},
        }
        for name, value in facts.items():
            values.setdefault(name, set()).add(fields.text(value))
    return values
