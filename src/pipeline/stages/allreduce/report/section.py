"""The allreduce section: its tables and figures, and a template that says what they show."""

from pathlib import Path

import pandas as pd

from pipeline.report.section import render
from pipeline.report.table_rows import ok
from pipeline.report.tables import (
    fold,
    markdown,
    markdown_folded_if_long,
    median_quartiles,
    number_cells,
    outcome,
    pivot,
    significant,
    with_outcomes,
)
from pipeline.stages.allreduce.report import baselines, findings
from pipeline.stages.allreduce.report.figures import CLOCKS, WAYS, draw_all
from pipeline.stages.allreduce.report.selection import CELL, bursts, calls, completed, fits, most_ranks, singles

TEMPLATE = Path(__file__).parent / "section.md.j2"


def build(rows: pd.DataFrame, figures_dir: Path) -> str:
    """Write the section's Markdown from the rows of all its tables, and its figures as SVG into a folder."""
    rows = completed(rows)
    facts = {"missing": _missing(rows), "measured": not bursts(ok(rows)).empty}
    if facts["measured"]:
        facts |= _facts(rows, figures_dir)
    return render(TEMPLATE, facts)


def _facts(rows: pd.DataFrame, figures_dir: Path) -> dict:
    pairs = baselines.beside_ours(rows)
    return {
        "setting": findings.setting(rows),
        "backends": findings.by_backend(rows),
        "oversubscribed": findings.oversubscribed(rows),
        "gloo_over_nccl": findings.backends_compared(rows),
        "single_over_burst": findings.single_over_burst(rows),
        "direct": findings.direct_nccl(rows),
        "latencies": findings.latencies(rows),
        "figures": draw_all(rows, figures_dir),
        "tables": _tables(rows),
        "others": [baselines.summary_table(pairs), *baselines.full_tables(pairs)] if len(pairs) else [],
    }


def _tables(rows: pd.DataFrame) -> dict[str, str]:
    shown = _with_skipped_sizes(rows)
    return {
        "times": _by_world_size(shown, _time_cells(shown)),
        "busbw": _by_world_size(shown, number_cells(shown, "busbw_gb_per_s")),
        **_ways_tables(ok(rows)),
        "set_up": _set_up_table(ok(rows)),
        "fits": _fit_table(rows),
        "ranks": fold("Fastest, mean and slowest rank", markdown(_ranks_table(ok(rows)))),
    }


def _with_skipped_sizes(rows: pd.DataFrame) -> pd.DataFrame:
    """Give a cell without figures a row for each size that its backend was measured with, elsewhere left out."""
    timed = bursts(rows)
    measured = ok(timed)
    sizes = measured[["backend", "size_bytes", "size"]].drop_duplicates()
    failed = timed[~timed.index.isin(measured.index)].drop(columns=["size_bytes", "size"]).merge(sizes, on="backend")
    found = pd.concat([measured, failed])
    return found.sort_values(["backend", "size_bytes", "world_size"], kind="stable", ignore_index=True)


def _time_cells(rows: pd.DataFrame) -> pd.Series:
    numbers = zip(rows["median_ms"], rows["q1_ms"], rows["q3_ms"], strict=True)
    return with_outcomes(pd.Series([median_quartiles(*three) for three in numbers], index=rows.index), rows)


def _by_world_size(rows: pd.DataFrame, cells: pd.Series) -> str:
    wide = pivot(rows, ["backend", "size"], "ranks", cells)
    return markdown(wide[["backend", "size", *rows.sort_values("world_size")["ranks"].unique()]])


def _ways_tables(rows: pd.DataFrame) -> dict[str, str]:
    """Write bus bandwidths of every way to time an all-reduce side by side: with the most ranks, and all."""
    ways = {name: calls(rows, *way) for name, way in WAYS.items()}
    ways |= {name: singles(rows, clock) for name, clock in CLOCKS.items()}
    named = pd.concat([found.assign(way=name) for name, found in ways.items()], ignore_index=True)
    wide = pivot(named, ["backend", "ranks", "size"], "way", number_cells(named, "busbw_gb_per_s"))
    most = set(most_ranks(rows)[["backend", "ranks"]].itertuples(index=False, name=None))
    first = wide[[pair in most for pair in zip(wide["backend"], wide["ranks"], strict=True)]]
    folded = fold("Bus bandwidth with any number of ranks, in GB/s", markdown(wide))
    return {"ways": markdown(first), "all_ways": folded if len(first) < len(wide) else ""}


def _set_up_table(rows: pd.DataFrame) -> str:
    ways = {
        "process group (ms)": rows[(rows["timing"] == "set_up") & (rows["impl"] == "torch")],
        "NCCL communicator (ms)": rows[(rows["timing"] == "set_up") & (rows["impl"] == "nccl")],
        "first all-reduce (ms)": calls(rows, "first_call"),
    }
    named = pd.concat([found.assign(way=name) for name, found in ways.items()])
    return markdown(pivot(named, ["backend", "ranks"], "way", number_cells(named, "median_ms")))


def _fit_table(rows: pd.DataFrame) -> str:
    table = fits(rows)
    if table.empty:
        return ""
    return markdown(
        pd.DataFrame(
            {
                "backend": table["backend"],
                "ranks": table["world_size"],
                "timing": table["timing"].where(~table["unstable"], table["timing"] + " (unstable)"),
                "latency (µs)": table["latency_us"].map(significant),
                "size / time (GB/s)": table["algbw_gb_per_s"].map(significant),
                "bus bandwidth (GB/s)": table["busbw_gb_per_s"].map(significant),
                "latency = transfer at (MB)": table["half_mb"].map(significant),
                "largest residual": [
                    f"{100 * value:+.0f}% at {size}"
                    for value, size in zip(table["worst_residual"], table["worst_size"], strict=True)
                ],
            }
        )
    )


def _ranks_table(rows: pd.DataFrame) -> pd.DataFrame:
    timed = rows[rows["timing"].isin(["burst", "single"])]
    ways = timed["timing"] + ", " + timed["impl"] + ", " + timed["placement"].str.replace("_", " ")
    columns = {"fastest (ms)": "rank_min_ms", "mean (ms)": "rank_mean_ms", "slowest (ms)": "rank_max_ms"}
    return (
        timed[["backend", "world_size", "size"]]
        .rename(columns={"world_size": "ranks"})
        .assign(
            way=ways,
            clock=timed["clock"].str.replace("_", " "),
            **{title: timed[column].map(significant) for title, column in columns.items()},
        )
    )


def _missing(rows: pd.DataFrame) -> str:
    """List what has no figure or an unstable one, a line for what is alike; empty if nothing."""
    failed = rows[rows["status"] != "ok"]
    if failed.empty:
        return ""
    failed = failed.assign(
        outcome=[outcome(*pair) for pair in zip(failed["status"], failed["reason"], strict=True)],
        size=failed["size"].where(failed["size_bytes"].notna(), "all"),
    )
    keys = ["backend", "world_size", "outcome"]
    groups = failed.groupby(keys, sort=False)
    table = groups.agg(rows=("status", "size"), sizes=("size", lambda sizes: ", ".join(sizes.unique()))).reset_index()
    table = table[[*CELL, "sizes", "rows", "outcome"]].rename(columns={"world_size": "ranks"})
    return markdown_folded_if_long(table, f"The {len(table)} lines of what is missing or unstable")
