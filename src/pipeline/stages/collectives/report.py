"""The collectives section: bus bandwidth and time by size, latency three ways, torch beside NCCL itself."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import interval, ms, number, percent, text
from pipeline.report.frame import alike, in_order, known, with_figures
from pipeline.report.markup import Markdown
from pipeline.report.section import Section, say
from pipeline.report.table import Columns, Table, filled
from pipeline.report.versus import versus
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
    by_torch = calls[calls["impl"] == "torch"]
    bursts = by_torch[by_torch["timing"] == BURST]
    groups, link, usual = _groups(by_torch), _link_gb_per_s(beside), alike(by_torch, USUAL)
    largest = _largest_group(bursts)
    return Section(
        _answer(groups),
        [_table(groups, link), _busbw(largest, link), _sizes(largest)],
        for_course=[_by_size(usual), _times(usual[usual["timing"] == BURST]), _beside_nccl(calls)],
    )


def size_words(size_bytes: float) -> str:
    """Write a size in the decimal units of nccl-tests."""
    unit = next(unit for unit, least in UNITS.items() if size_bytes >= least)
    return f"{size_bytes / UNITS[unit]:g} {unit}"


def _calls(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the repeated calls in reading order, most ranks first; single ones by the host's clock."""
    calls = rows[rows["timing"].isin(HOW)]
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
    """Return a row per cell: its smallest call timed in each way, and its best bus bandwidth."""
    found = []
    for _, own in calls.groupby(CELL, sort=False):
        bursts = own[own["timing"] == BURST]
        row, timed = bursts.iloc[0].to_dict(), with_figures(bursts)
        row |= {f"status_{part}": row["status"] for part in ("best", *HOW)}
        if len(timed):
            best = timed.loc[timed["busbw_gb_per_s"].idxmax()]
            row |= {f"{name}_best": best[name] for name in ("busbw_gb_per_s", "size", "status")}
        for how in HOW:
            least = own[own["timing"] == how].sort_values("size_bytes").head(1)
            row |= {f"{name}_{how}": value for name in ("median_ms", "status") for value in least[name]}
        found.append(row)
    made = ["busbw_gb_per_s_best", "size_best", "status_best", *(f"median_ms_{how}" for how in HOW)]
    return pd.DataFrame(found, columns=list(dict.fromkeys([*calls, *made, *(key for row in found for key in row)])))


def _largest_group(bursts: pd.DataFrame) -> pd.DataFrame:
    """Return the bursts of the first backend that has figures, on its most ranks."""
    timed = with_figures(bursts)
    return alike(bursts, timed.iloc[0][["backend", "world_size", "nodes"]].to_dict()) if len(timed) else timed


def _link_gb_per_s(beside: Mapping[str, pd.DataFrame]) -> float | None:
    """Return the rate of a copy to another GPU; None where it was not measured."""
    links = known(beside.get("ceilings", pd.DataFrame()), "kind", "gb_per_s")
    return next((float(row["gb_per_s"]) for _, row in links.iterrows() if row["kind"] == "to_peer"), None)


def _answer(groups: pd.DataFrame) -> str:
    timed = groups.dropna(subset="busbw_gb_per_s_best")
    if timed.empty:
        return "No call back to back has a time."
    best = timed.loc[timed["busbw_gb_per_s_best"].idxmax()]
    return say(
        "Over {ranks} {what} of {backend} reaches {busbw} GB/s of bus bandwidth at {size}. Its smallest call, "
        "{least}, takes {burst} back to back and {single} alone.",
        **best[["what", "ranks", "backend"]],
        busbw=_marked(best["status_best"]) + number(best["busbw_gb_per_s_best"]),
        size=best["size_best"],
        least=best["size"],
        burst=_marked(best[f"status_{BURST}"]) + ms(best[f"median_ms_{BURST}"]),
        single=_marked(best[f"status_{SINGLE}"]) + ms(best[f"median_ms_{SINGLE}"]),
    )


def _marked(status: str) -> Markdown:
    return Markdown("~" if status == "unstable" else "")


def _table(groups: pd.DataFrame, link: float | None) -> Table:
    of_link = (100 * groups["busbw_gb_per_s_best"] / (link or float("nan"))).where(groups["backend"] == "nccl")
    found = groups.assign(of_link_pct=of_link)
    least = "".join(groups["size"].dropna().head(1))
    columns: Columns = [
        ("collective", "what", text),
        ("backend", "backend", text),
        ("ranks", "of", text),
        ("dtype", "dtype", text),
        (f"{least} in a graph", f"median_ms_{GRAPH}", ms),
        (f"{least} back to back", f"median_ms_{BURST}", ms),
        (f"{least} alone, by the host's clock", f"median_ms_{SINGLE}", ms),
        ("best bus bandwidth (GB/s)", "busbw_gb_per_s_best", number),
        ("reached at", "size_best", text),
        ("of a copy between GPUs", "of_link_pct", percent),
    ]
    caption = "Each collective by torch.distributed, median of the slowest rank:"
    return Table("groups", caption, found, filled(found, columns))


def _busbw(bursts: pd.DataFrame, link: float | None) -> Chart:
    """Draw bus bandwidth over size in one data type, with one line for each collective."""
    drawn = bursts[bursts["dtype"].isin(bursts["dtype"].head(1))]
    return Chart(
        "busbw",
        "Bus bandwidth of calls back to back over their size",
        drawn,
        "line",
        SIZE_AXIS,
        Axis("busbw_gb_per_s", "bus bandwidth (GB/s)"),
        "what",
        limits=[Limit(link, "copy from GPU to GPU")] if link and set(drawn["backend"]) == {"nccl"} else [],
        hover={"ms": "median_ms", "algorithm bandwidth (GB/s)": "algbw_gb_per_s", "ranks": "ranks"},
    )


def _sizes(bursts: pd.DataFrame) -> Table:
    columns: Columns = [
        ("collective", "what", text),
        ("dtype", "dtype", text),
        ("", "size_bytes", size_words),
        ("GB/s", "busbw_gb_per_s", number),
        ("time", "median_ms", ms),
    ]
    caption = "Bus bandwidth in GB/s / time of a call back to back, by size, on the most ranks:"
    return Table("sizes", caption, known(bursts, "size_bytes"), columns, True, "")


def _times(bursts: pd.DataFrame) -> Chart:
    title, time = "Time of an all-reduce back to back over its size", Axis("median_ms", "ms a call", log=True)
    return Chart("times", title, bursts, "line", SIZE_AXIS, time, "ranks", panel="backend")


def _by_size(usual: pd.DataFrame) -> Table:
    """Write the time of an all-reduce of each size back to back and alone, a row per backend and ranks that ran."""
    timed = with_figures(usual)
    bursts, singles = (timed[timed["timing"] == how] for how in (BURST, SINGLE))
    on = [*CELL, "size_bytes"]
    both = bursts.merge(singles[[*on, "median_ms", "status"]], "left", on, suffixes=("", "_alone"))
    both = both.assign(ring_factor=2 * (both["world_size"] - 1) / both["world_size"])
    columns: Columns = [
        ("backend", "backend", text),
        ("ranks", "of", text),
        ("2·(n − 1)/n", "ring_factor", number),
        ("", "size_bytes", size_words),
        ("back to back, ms", "median_ms", number),
        ("alone, ms", "median_ms_alone", number),
    ]
    caption = "Time of an all-reduce of fp32 numbers back to back / alone, ms, median of the slowest rank:"
    return Table("by_size", caption, both, columns, all_rows=True, across="")


def _beside_nccl(calls: pd.DataFrame) -> Table:
    """Write torch's all-reduce beside NCCL's own, back to back, at the smallest and the largest size."""
    bursts = alike(calls[calls["placement"] != "out_of_place"], USUAL | {"timing": BURST, "backend": "nccl"})
    duel = versus(bursts, [*CELL, "size_bytes"], "impl", "torch", ["nccl"])
    ends = duel["size_bytes"].isin([duel["size_bytes"].min(), duel["size_bytes"].max()])
    duel = duel[ends].assign(gain=[interval(row) for _, row in duel[ends].iterrows()])
    columns: Columns = [
        ("ranks", "of", text),
        ("size", "size", text),
        ("torch.distributed (ms)", "median_ms", number),
        ("NCCL itself (ms)", "median_ms_peer", number),
        ("times as fast as NCCL (interval)", "gain", text),
        ("verdict", "verdict", text),
    ]
    return Table("beside_nccl", "torch.distributed beside NCCL called directly, back to back:", duel, columns)
