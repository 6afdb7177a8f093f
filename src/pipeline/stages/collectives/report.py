"""The collectives section: bus bandwidth and time by size, and the latency of a call three ways."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import ms, number
from pipeline.report.frame import alike, in_order, known, with_figures
from pipeline.report.markup import Markdown
from pipeline.report.section import Section, say
from pipeline.report.table import Table
from pipeline.stages.collectives.cell import COLLECTIVES

BACKENDS = ("nccl", "gloo")
CELL = ["backend", "nodes", "world_size", "dtype", "collective"]
BURST, SINGLE, GRAPH = HOW = "burst", "single", "graph"
SIZE_AXIS = Axis("size_bytes", "size (bytes)", log=True)
UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1}
# What the course asks for, and what training with one replica per rank sends.
USUAL = {"collective": "all_reduce", "dtype": "fp32"}


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the collectives stage; beside: ceilings, for the rate of a copy between GPUs."""
    calls = _calls(rows)
    bursts, groups, usual = calls[calls["timing"] == BURST], _groups(calls), alike(calls, USUAL)
    links = known(beside.get("ceilings", pd.DataFrame()), "kind", "gb_per_s")
    link = next((float(row["gb_per_s"]) for _, row in links.iterrows() if row["kind"] == "to_peer"), None)
    return Section(
        _answer(groups),
        [_table(groups, link), _busbw(bursts, link)],
        for_course=[_by_size(usual), _times(usual[usual["timing"] == BURST])],
    )


def size_words(size_bytes: float) -> str:
    """Write a size in the decimal units of nccl-tests."""
    unit = next(unit for unit, least in UNITS.items() if size_bytes >= least)
    return f"{size_bytes / UNITS[unit]:g} {unit}"


def _calls(rows: pd.DataFrame) -> pd.DataFrame:
    """Return torch's repeated calls in reading order, most ranks first; single ones by the host's clock."""
    calls = rows[rows["timing"].isin(HOW) & (rows["impl"] == "torch")]
    calls = calls[(calls["timing"] != SINGLE) | (calls["clock"] != "cuda_events")]
    of_nodes = (" of " + calls["nodes"].astype(str) + " nodes").where(calls["nodes"] > 1, "")
    calls = calls.assign(
        ranks=calls["world_size"].astype(str) + " ranks" + of_nodes,
        of=calls["world_size"].astype(str) + of_nodes,
        fewer=-calls["world_size"],
        what=calls["collective"].str.replace("_", "-"),
        size=calls["size_bytes"].map(size_words, na_action="ignore"),
    )
    orders = {"backend": BACKENDS, "collective": COLLECTIVES, "dtype": ("fp32", "bf16")}
    return in_order(calls, ["backend", "fewer", "nodes", "dtype", "collective", "size_bytes"], orders)


def _groups(calls: pd.DataFrame) -> pd.DataFrame:
    """Return a row per cell: its smallest call timed in each way, as `_burst` and so on, and its `_best` bandwidth."""
    bursts = calls[calls["timing"] == BURST]
    best = with_figures(bursts).sort_values("busbw_gb_per_s", ascending=False, kind="stable")
    found = bursts.drop_duplicates(CELL)
    for name, own in {"best": best, **{how: calls[calls["timing"] == how] for how in HOW}}.items():
        own = own.drop_duplicates(CELL).set_index(CELL)[["busbw_gb_per_s", "size", "median_ms", "status"]]
        found = found.join(own.add_suffix(f"_{name}"), on=CELL)
        found[f"status_{name}"] = found[f"status_{name}"].fillna(found["status"])
    return found


def _answer(groups: pd.DataFrame) -> str:
    timed = known(groups, "busbw_gb_per_s_best")
    if timed.empty:
        return "No call back to back has a time."
    best = timed.loc[timed["busbw_gb_per_s_best"].idxmax()]
    told = {
        "best": number(best["busbw_gb_per_s_best"]),
        **{how: ms(best[f"median_ms_{how}"]) for how in (BURST, SINGLE)},
    }
    marks = {name: Markdown("~" if best[f"status_{name}"] == "unstable" else "") for name in told}
    return say(
        "Over {ranks} {what} of {backend} reaches {best} GB/s of bus bandwidth at {size_best}. Its smallest call, "
        "{size}, takes {burst} back to back and {single} alone.",
        **best[["what", "ranks", "backend", "size_best", "size"]],
        **{name: marks[name] + words for name, words in told.items()},
    )


def _table(groups: pd.DataFrame, link: float | None) -> Table:
    of_link = (100 * groups["busbw_gb_per_s_best"] / (link or float("nan"))).where(groups["backend"] == "nccl")
    least = "".join(groups["size"].dropna().head(1))
    names = "what backend of dtype median_ms_graph median_ms_burst median_ms_single busbw_gb_per_s_best:number"
    heads = {"what": "collective", "of": "ranks", "busbw_gb_per_s_best": "best bus bandwidth (GB/s)"}
    heads |= {"median_ms_graph": f"{least} in a graph, ms", "median_ms_burst": f"{least} back to back, ms"}
    heads |= {"median_ms_single": f"{least} alone, ms by the host's clock", "of_link_pct": "of a copy between GPUs"}
    caption, found = (
        "Each collective by torch.distributed, median of the slowest rank:",
        groups.assign(of_link_pct=of_link),
    )
    names, heads["size_best"] = f"{names} size_best of_link_pct", "reached at"
    return Table.of("groups", caption, found, names, all_rows=False, only_filled=True, heads=heads)


def _busbw(bursts: pd.DataFrame, link: float | None) -> Chart:
    """Draw bus bandwidth over size in one data type, of the first backend with figures on its most ranks."""
    largest = with_figures(bursts).head(1)[["backend", "world_size", "nodes", "dtype"]]
    drawn = bursts.merge(largest)
    limits = [Limit(link, "copy from GPU to GPU")] if link and set(drawn["backend"]) == {"nccl"} else []
    title, axes = (
        "Bus bandwidth of calls back to back over their size",
        (SIZE_AXIS, Axis("busbw_gb_per_s", "bus bandwidth (GB/s)")),
    )
    hover = {"ms": "median_ms", "algorithm bandwidth (GB/s)": "algbw_gb_per_s", "ranks": "ranks"}
    return Chart("busbw", title, drawn, "line", *axes, "what", limits=limits, hover=hover)


def _times(bursts: pd.DataFrame) -> Chart:
    title, time = "Time of an all-reduce back to back over its size", Axis("median_ms", "ms a call", log=True)
    return Chart("times", title, bursts, "line", SIZE_AXIS, time, "ranks", panel="backend")


def _by_size(usual: pd.DataFrame) -> Table:
    """Write the time of an all-reduce of each size back to back and alone, a row per backend and ranks that ran."""
    ran = usual.merge(with_figures(usual)[CELL].drop_duplicates(), on=CELL)
    bursts, singles = (ran[ran["timing"] == how] for how in (BURST, SINGLE))
    on = [*CELL, "size_bytes"]
    both = bursts.merge(singles[[*on, "median_ms", "status"]], "left", on, suffixes=("", "_alone"))
    both = both.assign(
        ring_factor=2 * (both["world_size"] - 1) / both["world_size"], size=both["size_bytes"].map(size_words)
    )
    caption = "Time of an all-reduce of fp32 numbers back to back / alone, ms, median of the slowest rank:"
    names, heads = "backend of ring_factor size median_ms median_ms_alone", {"of": "ranks", "size": ""}
    return Table.of("by_size", caption, both, names, across="", heads=heads | {"ring_factor": "2·(n − 1)/n"})
