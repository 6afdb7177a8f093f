"""The tables of the flash section."""

import pandas as pd

from pipeline.report.markup import Markdown, paragraphs
from pipeline.report.reasons import without_own_numbers
from pipeline.report.table_rows import ok
from pipeline.report.tables import (
    OUTCOME_WORDS,
    fold,
    markdown,
    markdown_folded_if_long,
    number_cells,
    pivot,
    significant,
    with_outcomes,
)
from pipeline.stages.flash.cell import PHASES
from pipeline.stages.flash.report import findings
from pipeline.stages.flash.report.selection import (
    IMPLS,
    LONG,
    PROBLEM,
    leaderboard,
    main_grid,
    main_head_dim,
    other_shapes,
    ours,
)

READABLE = {"seq_len": "sequence length", "impl": "implementation"}
# Beside head_dim and length, so that a table stays readable.
IMPLS_A_TABLE = 6


def against_eager(rows: pd.DataFrame) -> list[str]:
    """Write the assignment's table, ours beside eager: at the head_dim shown first, then, folded, at every one."""
    grid = main_grid(rows)
    both = grid[grid["impl"].isin([ours(rows), "eager"])]
    texts = []
    for dtype, group in both.groupby("dtype", sort=False):
        head_dim = main_head_dim(group)
        main = group[group["head_dim"] == head_dim]
        title = Markdown("**{}**, head_dim {}, medians in ms:").format(dtype, head_dim)
        texts.append(paragraphs(title, _by_impl_and_pass(main)))
        if len(group) > len(main):
            texts.append(fold(f"{dtype}: every head_dim, ours and eager, medians in ms", _by_impl_and_pass(group)))
    return texts


def _by_impl_and_pass(rows: pd.DataFrame) -> str:
    column = rows["impl"] + " " + rows["phase"].replace({"forward_backward": "both"})
    table = pivot(rows.assign(column=column), ["head_dim", "seq_len"], "column", _short_cells(rows, "median_ms"))
    return markdown(table.rename(columns=READABLE))


def _short_cells(rows: pd.DataFrame, column: str) -> pd.Series:
    """Write one column, or the outcome as one word: its reason stands once, at the section's end."""
    cells = rows[column].map(significant)
    return with_outcomes(cells, rows.assign(reason=None))


def all_implementations(rows: pd.DataFrame) -> list[str]:
    """Write every time of the assignment's grid, folded: a table a dtype and pass, implementations side by side."""
    grid = main_grid(rows)
    grid = grid[grid["impl"].isin(ok(grid)["impl"])]
    return [
        fold(
            f"{dtype}, {part.replace('_', ' + ')}: every implementation, medians in ms",
            _side_by_side(group, ["head_dim", "seq_len"], "median_ms"),
        )
        for (dtype, part), group in grid.groupby(["dtype", "phase"], sort=False)
    ]


def _side_by_side(rows: pd.DataFrame, index: list[str], column: str) -> str:
    """Put implementations in columns, so many a table as can be read; those without a figure are left out."""
    present = [impl for impl in IMPLS if impl in set(ok(rows)["impl"])]
    texts = []
    for first in range(0, len(present), IMPLS_A_TABLE):
        here = rows[rows["impl"].isin(present[first : first + IMPLS_A_TABLE])]
        texts.append(markdown(pivot(here, index, "impl", _short_cells(here, column)).rename(columns=READABLE)))
    return paragraphs(*texts)


def gains(rows: pd.DataFrame) -> str:
    """Write geometric means of the others' times over ours on the assignment's grid; empty without any."""
    found = findings.gains(rows)
    if found.empty:
        return ""
    table = pd.DataFrame(
        {
            "dtype": found["dtype"],
            "pass": found["phase"].str.replace("_", " + "),
            "against": found["against"].replace({"best": "the best of these"}),
            "problems": found["problems"],
            "geometric mean": found["mean"].map(significant),
            "lowest": found["least"].map(significant),
            "highest": found["most"].map(significant),
            "ours slower at": found["slower"],
        }
    )
    return markdown_folded_if_long(table, "Others' time over ours: geometric means over the grid")


def errors(rows: pd.DataFrame) -> str:
    """Write the largest relative errors against fp64, a line a dtype and implementation."""
    found = findings.errors(rows)
    cells = found["rel_error"].map("{:.1e}".format)
    times = found["over_eager"].map(lambda value: "" if pd.isna(value) else f" ({significant(value, 2)}×)")
    return markdown(pivot(found, ["dtype", "impl"], "quantity", cells + times).rename(columns=READABLE))


def shapes(rows: pd.DataFrame) -> list[str]:
    """Write the times at the other shapes, a table a dtype and pass; a shape is B×H×S×D."""
    beside = other_shapes(rows)
    if ok(beside).empty:
        return []
    sizes = beside[["batch_size", "num_heads", "seq_len", "head_dim"]].astype(str).agg("×".join, axis=1)
    causal = beside["is_causal"].map({True: "causal", False: "full"})
    beside = beside.assign(shape=sizes + " " + causal)
    title = Markdown("**{}**, {}, medians in ms:")
    return [
        paragraphs(title.format(dtype, part.replace("_", " + ")), _side_by_side(group, ["shape"], "median_ms"))
        for (dtype, part), group in beside.groupby(["dtype", "phase"], sort=False)
        if len(ok(group))
    ]


def leaderboard_times(rows: pd.DataFrame) -> str:
    """Write every implementation at the leaderboard's shape: times, rate, share of peak; empty if not measured."""
    here = ok(leaderboard(rows))
    if here.empty:
        return ""
    times = pivot(here, ["dtype", "impl"], "phase", number_cells(here, "median_ms"))
    both = of_pass(here, "forward_backward").set_index(["dtype", "impl"])
    keys = [tuple(key) for key in times[["dtype", "impl"]].to_numpy()]
    for title, column in {"TFLOP/s": "tflops_per_s", "share of peak (%)": "peak_share_pct"}.items():
        times[title] = [significant(both[column].get(key, float("nan"))) for key in keys]
    return markdown(times.rename(columns={**READABLE, "forward_backward": "forward + backward"}))


def of_pass(rows: pd.DataFrame, part: str) -> pd.DataFrame:
    """Keep one pass."""
    return rows[rows["phase"] == part]


def latencies(rows: pd.DataFrame) -> list[str]:
    """Write lone calls at lengths where the launch decides, a table a dtype and pass; empty on a CPU."""
    if "median_call_ms" not in rows:
        return []
    grid = main_grid(rows)
    short = grid[(grid["seq_len"] <= LONG) & (grid["head_dim"] == main_head_dim(rows)) & grid["median_call_ms"].notna()]
    return [
        fold(
            f"{dtype}, {part.replace('_', ' + ')}: a lone call at head_dim {main_head_dim(rows)}, median in ms",
            _side_by_side(of_pass(group, part), ["seq_len"], "median_call_ms"),
        )
        for dtype, group in short.groupby("dtype", sort=False)
        for part in PHASES
        if len(ok(of_pass(group, part)))
    ]


def missing(rows: pd.DataFrame) -> str:
    """List what is not ok, those alike but for head_dim and length in one line; empty if nothing is."""
    failed = rows[rows["status"] != "ok"].fillna({"reason": ""})
    if failed.empty:
        return ""
    failed = failed.assign(
        status=failed["status"].map(OUTCOME_WORDS),
        reason=without_own_numbers(failed["reason"]),
    )
    keys = ["dtype", "impl", "status", "reason"]
    found = failed.groupby(keys, sort=False).apply(_where, include_groups=False).reset_index()
    return markdown_folded_if_long(found.rename(columns=READABLE), f"The {len(found)} lines of what is not ok")


def _where(rows: pd.DataFrame) -> pd.Series:
    parts = [part for part in PHASES if part in set(rows["phase"])]
    whole = len(parts) == len(PHASES)
    return pd.Series(
        {
            "passes": "all" if whole else ", ".join(part.replace("_", " + ") for part in parts),
            "head_dim": ", ".join(map(str, sorted(rows["head_dim"].unique()))),
            "sequence length": ", ".join(map(str, sorted(rows["seq_len"].unique()))),
            "problems": len(rows.drop_duplicates([name for name in PROBLEM if name in rows])),
        }
    )
