"""The allreduce section: times back to back and alone, bus bandwidth over size, torch beside NCCL itself."""

from collections.abc import Mapping

import pandas as pd

from pipeline.formulas.collectives import fit_linear_cost
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import interval, ms, number, percent, text
from pipeline.report.frame import in_order, known, with_figures
from pipeline.report.markup import Markdown
from pipeline.report.section import Section, say
from pipeline.report.table import Table
from pipeline.report.versus import versus

BACKENDS = ("nccl", "gloo")
CELL = ["backend", "nodes", "world_size"]
BURST, SINGLE = HOW = "burst", "single"
ENDS = ("least", "most")
SIZE = "size (MB of 10⁶ bytes)"


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the allreduce stage; beside: ceilings, for the rate of a copy between GPUs."""
    calls = _calls(rows)
    bursts, singles = _torchs(calls, BURST), _torchs(calls, SINGLE)
    groups = _groups(bursts, singles)
    link = _link_gb_per_s(beside)
    drawn = [chart for chart in _busbw(bursts, link) if not chart.is_empty]
    return Section(
        _answer(groups),
        [_table(groups, bursts, link), *drawn[:1]],
        for_course=[
            *drawn[1:],
            _beside_nccl(calls),
            _by_size(bursts, singles),
            _times(bursts),
        ],
    )


def _calls(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the repeated calls in reading order, with ranks and size in words; single ones by the host's clock."""
    calls = rows[rows["timing"].isin([BURST, SINGLE])]
    calls = calls[(calls["timing"] == BURST) | (calls["clock"] != "cuda_events")]
    of_nodes = (" of " + calls["nodes"].astype(str) + " nodes").where(calls["nodes"] > 1, "")
    calls = calls.assign(
        ranks=calls["world_size"].astype(str) + " ranks" + of_nodes,
        of=calls["world_size"].astype(str) + of_nodes,
        size_mb=calls["size_bytes"].astype(float) / 1e6,
        size=calls["size_bytes"].map(lambda size: f"{size / 1e6:g} MB", na_action="ignore"),
    )
    return in_order(calls, [*CELL, "size_bytes"], {"backend": BACKENDS})


def _torchs(calls: pd.DataFrame, timing: str) -> pd.DataFrame:
    return calls[(calls["timing"] == timing) & (calls["impl"] == "torch") & (calls["placement"] != "out_of_place")]


def _groups(bursts: pd.DataFrame, singles: pd.DataFrame) -> pd.DataFrame:
    """Return a row per backend, nodes and ranks: its smallest and largest size both ways, its best bus bandwidth."""
    found = []
    for key, own in bursts.groupby(CELL, sort=False):
        alone = singles[(singles[CELL] == pd.Series(dict(zip(CELL, key, strict=True)))).all(axis=1)]
        timed, row = with_figures(own), own.iloc[0].to_dict()
        if len(timed):
            best = timed.loc[timed["busbw_gb_per_s"].idxmax()]
            row |= {"best_busbw_gb_per_s": best["busbw_gb_per_s"], "best_size": best["size"]}
            row |= {"best_status": best["status"], **_cost(timed)}
        for timing, calls in ((BURST, own), (SINGLE, alone)):
            calls = calls.sort_values("size_bytes")
            for end, call in zip(ENDS, (calls.head(1), calls.tail(1)), strict=True):
                values = call[["median_ms", "status"]].to_dict("records")
                row |= {f"{name}_{end}_{timing}": value for each in values for name, value in each.items()}
        found.append(row)
    names = [
        "best_busbw_gb_per_s",
        "best_size",
        "best_status",
        "latency_us",
        *(f"median_ms_{end}_{how}" for end in ENDS for how in HOW),
    ]
    return pd.DataFrame(found, columns=list(dict.fromkeys([*bursts, *names, *(key for row in found for key in row)])))


def _cost(timed: pd.DataFrame) -> dict[str, float]:
    try:
        cost = fit_linear_cost(timed["size_bytes"].astype(float), timed["median_ms"] / 1e3)
    except ValueError:
        return {}
    return {"latency_us": 1e6 * cost.latency_s}


def _link_gb_per_s(beside: Mapping[str, pd.DataFrame]) -> float | None:
    """Return the rate of a copy to another GPU; None where it was not measured."""
    links = known(beside.get("ceilings", pd.DataFrame()), "kind", "gb_per_s")
    copies = links[links["kind"] == "to_peer"] if len(links) else links
    return float(copies["gb_per_s"].iloc[0]) if len(copies) else None


def _answer(groups: pd.DataFrame) -> str:
    timed = groups.dropna(subset="best_busbw_gb_per_s")
    if timed.empty:
        return "No call back to back has a time."
    best = timed.loc[timed["best_busbw_gb_per_s"].idxmax()]
    return say(
        "{backend} over {ranks} reaches {busbw} GB/s of bus bandwidth at {size}. Its smallest call takes {burst} "
        "back to back, launches queued, and {single} alone.",
        ranks=best["ranks"],
        backend=best["backend"],
        busbw=_marked(best["best_status"]) + number(best["best_busbw_gb_per_s"]),
        size=best["best_size"],
        burst=_marked(best[f"status_least_{BURST}"]) + ms(best[f"median_ms_least_{BURST}"]),
        single=_marked(best[f"status_least_{SINGLE}"]) + ms(best[f"median_ms_least_{SINGLE}"]),
    )


def _marked(status: str) -> Markdown:
    """Return what leads an unstable value."""
    return Markdown("~" if status == "unstable" else "")


def _table(groups: pd.DataFrame, bursts: pd.DataFrame, link: float | None) -> Table:
    sizes = bursts.dropna(subset="size_bytes").sort_values("size_bytes")["size"]
    ends = zip(ENDS, (sizes.head(1), sizes.tail(1)), strict=True)
    words = {end: "".join(size) for end, size in ends}
    of_link = (100 * groups["best_busbw_gb_per_s"] / (link or float("nan"))).where(groups["backend"] == "nccl")
    columns = [
        ("backend", "backend", text),
        ("ranks", "of", text),
        (f"{words['least']} back to back (ms)", f"median_ms_least_{BURST}", number),
        (f"{words['least']} alone (ms)", f"median_ms_least_{SINGLE}", number),
        (f"{words['most']} back to back (ms)", f"median_ms_most_{BURST}", number),
        (f"{words['most']} alone (ms)", f"median_ms_most_{SINGLE}", number),
        ("fixed cost of a call, by fit (µs)", "latency_us", number),
        ("best bus bandwidth (GB/s)", "best_busbw_gb_per_s", number),
        ("reached at", "best_size", text),
        *([("of the rate of a copy between GPUs", "of_link_pct", percent)] if link else []),
    ]
    caption = "An all-reduce of fp32 numbers by torch.distributed, median of the slowest rank:"
    return Table("groups", caption, groups.assign(of_link_pct=of_link), columns)


def _busbw(bursts: pd.DataFrame, link: float | None) -> list[Chart]:
    """Draw the bus bandwidth over size, a chart a backend: their rates lie far apart."""
    hover = {"ms": "median_ms", "algorithm bandwidth (GB/s)": "algbw_gb_per_s"}
    axes = Axis("size_mb", SIZE, log=True), Axis("busbw_gb_per_s", "bus bandwidth (GB/s)")
    return [
        Chart(
            f"busbw_{backend}",
            f"Bus bandwidth of {backend} over the size of calls back to back",
            own,
            "line",
            *axes,
            "ranks",
            limits=[Limit(link, "copy from GPU to GPU")] if link and backend == "nccl" else [],
            hover=hover,
        )
        for backend, own in bursts.groupby("backend", sort=False)
    ]


def _times(bursts: pd.DataFrame) -> Chart:
    axes = Axis("size_mb", SIZE, log=True), Axis("median_ms", "ms a call", log=True)
    return Chart("times", "Time of a call back to back over its size", bursts, "line", *axes, "ranks", panel="backend")


def _by_size(bursts: pd.DataFrame, singles: pd.DataFrame) -> Table:
    """Write the time of a call of each size back to back and alone, a row per backend and ranks."""
    on = [*CELL, "size_bytes"]
    both = bursts.merge(singles[[*on, "median_ms", "status"]], "left", on, suffixes=("", "_alone"))
    # What did not run says so at every size.
    sizes = both.dropna(subset="size").sort_values("size_bytes")["size"].unique()
    both = both.assign(size=[[each] if pd.notna(each) else list(sizes) for each in both["size"]]).explode("size")
    columns = [
        ("backend", "backend", text),
        ("ranks", "of", text),
        ("", "size", text),
        ("back to back, ms", "median_ms", number),
        ("alone, ms", "median_ms_alone", number),
    ]
    caption = "Time of an all-reduce back to back / of one alone, ms, median of the slowest rank:"
    return Table("by_size", caption, both, columns, all_rows=True, across="")


def _beside_nccl(calls: pd.DataFrame) -> Table:
    """Write torch's calls beside NCCL's own, back to back, at the smallest and the largest size."""
    bursts = calls[(calls["timing"] == BURST) & (calls["backend"] == "nccl") & (calls["placement"] != "out_of_place")]
    duel = versus(bursts, [*CELL, "size_bytes"], "impl", "torch", ["nccl"])
    ends = duel["size_bytes"].isin([duel["size_bytes"].min(), duel["size_bytes"].max()])
    duel = duel[ends].assign(gain=[interval(row) for _, row in duel[ends].iterrows()])
    columns = [
        ("ranks", "of", text),
        ("size", "size", text),
        ("torch.distributed (ms)", "median_ms", number),
        ("NCCL itself (ms)", "median_ms_peer", number),
        ("times as fast as NCCL (interval)", "gain", text),
        ("verdict", "verdict", text),
    ]
    return Table("beside_nccl", "torch.distributed beside NCCL called directly, back to back:", duel, columns)
