"""Build the collectives section: bus bandwidth and time by size, and a call's latency timed in three ways."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.frame import having, in_order, matching, with_values
from pipeline.report.section import Compared, Section
from pipeline.report.table import Table
from pipeline.report.words import Words
from pipeline.stages.collectives.cell import COLLECTIVES

WORDS = Words(__file__)
CELL = ["backend", "nodes", "world_size", "dtype", "collective"]
ORDERS = {"backend": ("nccl", "gloo"), "collective": COLLECTIVES, "dtype": ("fp32", "bf16")}
BURST, SINGLE = "burst", "single"
TIMINGS = (BURST, SINGLE, "graph")
SIZE_AXIS = Axis("size_bytes", log=True, prefixes=True)
CALL, BEST = "{backend} {what} in {dtype}, {ranks}", "busbw_gb_per_s_best"
UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1}
# What the course asks for, and what data-parallel training sends.
USUAL = {"collective": "all_reduce", "dtype": "fp32"}


def build(rows: pd.DataFrame, other_stages: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the collectives stage; other_stages: ceilings, for the rate of a copy between GPUs."""
    calls = _calls(rows)
    bursts, least_bytes, usual = calls[calls["timing"] == BURST], _least_bytes(calls), matching(calls, USUAL)
    groups = _groups(calls, least_bytes)
    copies = other_stages.get("ceilings", pd.DataFrame(columns=["kind", "gb_per_s"]))
    link = copies.loc[copies["kind"] == "to_peer", "gb_per_s"].max()
    best = having(groups, BEST)
    times = usual[usual["timing"] == BURST], "line", SIZE_AXIS, Axis("median_ms", log=True), "ranks"
    return Section(
        _answer(groups),
        [_table(groups, least_bytes, link), _busbw(bursts, link)],
        for_course=[_by_size(usual), WORDS.chart("times", *times, panel="backend")],
        compared=[Compared(CALL.format(**row), "GB/s, bus", row[BEST]) for row in best.to_dict("records")],
    )


def _size(size_bytes: float) -> str:
    """Write a size in the decimal units of nccl-tests."""
    unit = next(unit for unit, least in UNITS.items() if size_bytes >= least)
    return f"{size_bytes / UNITS[unit]:g} {unit}"


def _calls(rows: pd.DataFrame) -> pd.DataFrame:
    """Return torch's repeated calls in reading order, most ranks first; single ones only by the host clock."""
    calls = rows[rows["timing"].isin(TIMINGS) & (rows["impl"] == "torch")]
    calls = calls[(calls["timing"] != SINGLE) | (calls["clock"] != "cuda_events")]
    ranks = calls["world_size"].astype(str)
    of_nodes = (" of " + calls["nodes"].astype(str) + " nodes").where(calls["nodes"] > 1, "")
    calls = calls.assign(
        ranks=ranks + " ranks" + of_nodes,
        of=ranks + of_nodes,
        fewer=-calls["world_size"],
        what=calls["collective"].str.replace("_", "-"),
        size=calls["size_bytes"].map(_size, na_action="ignore"),
    )
    return in_order(calls, ["backend", "fewer", "nodes", "dtype", "collective", "size_bytes"], ORDERS)


def _least_bytes(calls: pd.DataFrame) -> float | None:
    """Return the smallest size that every cell with times has; None where they share none."""
    sizes = [{*of_cell["size_bytes"]} for _, of_cell in with_values(calls[calls["timing"] == BURST]).groupby(CELL)]
    return min(set.intersection(*sizes), default=None) if sizes else None


def _groups(calls: pd.DataFrame, least_bytes: float | None) -> pd.DataFrame:
    """Return a row per cell: a small call timed each way (`*_burst`, `*_single`, `*_graph`) and the best bandwidth.

    least_bytes: the size of the small call; None: each cell's smallest.
    """
    bursts = calls[calls["timing"] == BURST]
    best = with_values(bursts).sort_values("busbw_gb_per_s", ascending=False, kind="stable")
    small = calls[calls["size_bytes"] == least_bytes] if least_bytes is not None else calls
    found = bursts.drop_duplicates(CELL)
    for name, calls_of in {"best": best, **{timing: small[small["timing"] == timing] for timing in TIMINGS}}.items():
        calls_of = calls_of.drop_duplicates(CELL).set_index(CELL)[["busbw_gb_per_s", "size", "median_ms", "status"]]
        found = found.join(calls_of.add_suffix(f"_{name}"), on=CELL)
        found[f"status_{name}"] = found[f"status_{name}"].fillna(found["status"])
    return found


def _answer(groups: pd.DataFrame) -> str:
    timed = having(groups, BEST)
    if timed.empty:
        return WORDS.say("no_times")
    usual = timed[timed["collective"] == USUAL["collective"]]
    timed = usual if len(usual) else timed
    best = timed.loc[timed["busbw_gb_per_s_best"].idxmax()]
    return WORDS.say("answer", best=best)


def _by_dtype(groups: pd.DataFrame) -> pd.DataFrame:
    """Put each backend's data type with the most timed cells first: its rows can be compared across ranks."""
    timed = having(groups, BEST).groupby(["backend", "dtype"]).size().rename("timed")
    fewest_last = -groups.join(timed, on=["backend", "dtype"])["timed"].fillna(0)
    return in_order(groups.assign(fewest_last=fewest_last), ["backend", "fewest_last"], ORDERS)


def _table(groups: pd.DataFrame, least_bytes: float | None, link: float) -> Table:
    of_link_pct = (100 * groups["busbw_gb_per_s_best"] / link).where(groups["backend"] == "nccl")
    names = "what backend of dtype median_ms_graph median_ms_burst median_ms_single busbw_gb_per_s_best:number"
    # Skipped cells are listed with the cells without results.
    shown = _by_dtype(groups.assign(of_link_pct=of_link_pct)[groups["status"] != "skipped"])
    least = _size(least_bytes) if least_bytes is not None else WORDS.say("smallest")
    return WORDS.table("groups", shown, f"{names} size_best of_link_pct", all_rows=False, only_filled=True, least=least)


def _busbw(bursts: pd.DataFrame, link: float) -> Chart:
    """Plot bus bandwidth by size for the first backend with values, on its most ranks, in one data type.

    That data type is the one with the most collectives measured.
    """
    drawn = bursts.merge(with_values(bursts).head(1)[["backend", "world_size", "nodes"]])
    counts = with_values(drawn).groupby("dtype", sort=False)["collective"].nunique()
    drawn = drawn[drawn["dtype"].isin(counts[counts == counts.max()].head(1).index)]
    limits = [Limit(link, "copy from GPU to GPU")] if link > 0 and set(drawn["backend"]) == {"nccl"} else []
    axes, hover = (SIZE_AXIS, "busbw_gb_per_s"), "median_ms algbw_gb_per_s ranks"
    return WORDS.chart("busbw", drawn, "line", *axes, "what", hover=hover, limits=limits)


def _by_size(usual: pd.DataFrame) -> Table:
    """Tabulate all-reduce times by size, back-to-back and single, with a row per backend and ranks that ran."""
    ran = usual.merge(with_values(usual)[CELL].drop_duplicates(), on=CELL)
    bursts, singles = (ran[ran["timing"] == timing] for timing in (BURST, SINGLE))
    on = [*CELL, "size_bytes"]
    both = bursts.merge(singles[[*on, "median_ms", "status"]], "left", on, suffixes=("", "_alone"))
    both = both.assign(ring_factor=2 * (both["world_size"] - 1) / both["world_size"])
    return WORDS.table("by_size", both, "backend of ring_factor size median_ms median_ms_alone", across="size")
