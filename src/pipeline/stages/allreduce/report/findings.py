"""What the allreduce tables say: every number and every comparative word of the section's prose."""

import pandas as pd

from pipeline.formulas.collectives import all_reduce_bus_factor
from pipeline.report.section import compare, growth_exponent, growth_word, mark_unstable, trend
from pipeline.report.table_rows import ok
from pipeline.stages.allreduce.report.selection import CELL, bursts, calls, fits, singles


def setting(rows: pd.DataFrame) -> dict:
    """Say what was measured, where and how often."""
    found = ok(rows)
    timed = bursts(found)
    return {
        "machines": list(found["machine"].unique()),
        "torch": list(found["torch"].unique()),
        "backends": list(found["backend"].unique()),
        "world_sizes": sorted(found["world_size"].unique()),
        "sizes": list(timed.sort_values("size_bytes")["size"].unique()),
        "warmup_calls": int(found["setting_warmup_calls"].max()),
        "fewest_calls": int(timed["calls"].min()),
        "most_calls": int(timed["calls"].max()),
        "moves_on": bool((timed["parts"] > 1).any()),
        "has_nccl": "nccl" in set(found["backend"]),
        "has_gloo": "gloo" in set(found["backend"]),
    }


def by_backend(rows: pd.DataFrame) -> list[dict]:
    """Give, per backend, times at both ends of the sizes, how they grow, and the bus bandwidth reached."""
    found = []
    for backend, group in bursts(ok(rows)).groupby("backend", sort=False):
        ends = _ends(group)
        smallest, largest = (group[group["size"] == size].set_index("ranks") for size in ends)
        entry = {
            "backend": backend,
            "smallest_size": ends[0],
            "largest_size": ends[1],
            "smallest_ms": mark_unstable(smallest["median_ms"], _unstable(smallest)),
            "largest_ms": mark_unstable(largest["median_ms"], _unstable(largest)),
            "busbw": mark_unstable(largest["busbw_gb_per_s"], _unstable(largest)),
            **_growth(group),
            **_more_ranks(smallest, largest),
        }
        found.append(entry)
    return found


def _unstable(rows: pd.DataFrame) -> pd.Series:
    return rows["status"] == "unstable"


def _ends(group: pd.DataFrame) -> tuple[str, str]:
    """Name the smallest and the largest size."""
    by_size = bursts(group).sort_values("size_bytes")["size"]
    return by_size.iloc[0], by_size.iloc[-1]


def _growth(group: pd.DataFrame) -> dict:
    """Say how the time grows with size, and what bus bandwidth does meanwhile; empty for one size."""
    if group["size_mb"].nunique() < 2:
        return {"exponents": {}, "busbw_trends": {}}
    several = {ranks: line for ranks, line in group.groupby("ranks", sort=False) if len(line) > 1}
    exponents = {ranks: growth_exponent(line["size_mb"], line["median_ms"]) for ranks, line in several.items()}
    trends: dict[str, list[str]] = {}
    for ranks, line in several.items():
        trends.setdefault(_busbw_trend(line), []).append(ranks)
    exponents = pd.Series(exponents)
    unstable = pd.Series({ranks: _unstable(line).any() for ranks, line in several.items()})
    return {
        "exponents": mark_unstable(exponents, unstable),
        "growth_word": growth_word(exponents.median()),
        "busbw_trends": trends,
    }


def _busbw_trend(line: pd.DataFrame) -> str:
    """Say what bus bandwidth does over size: where it rises or falls and then stays level, up to which size."""
    values, sizes = list(line["busbw_gb_per_s"]), list(line["size"])
    word = trend(values)
    level_from = next(place for place in range(len(values)) if trend(values[place:]) == "stays level")
    if word not in ("rises", "falls") or level_from == len(values) - 1:
        return word
    return f"{word} up to {sizes[level_from]} and stays level from there"


def _more_ranks(smallest: pd.DataFrame, largest: pd.DataFrame) -> dict:
    """Hold the time with the most ranks against that with the fewest, and against a ring; empty for one world size."""
    both = largest.index.intersection(smallest.index)
    if len(both) < 2:
        return {"more": {}}
    few, many = both[0], both[-1]
    ring = all_reduce_bus_factor(largest.loc[many, "world_size"]) / all_reduce_bus_factor(
        largest.loc[few, "world_size"]
    )
    ratio = largest.loc[many, "median_ms"] / largest.loc[few, "median_ms"]
    more = {
        "few": few,
        "many": many,
        "smallest_ratio": smallest.loc[many, "median_ms"] / smallest.loc[few, "median_ms"],
        "smallest_unstable": _unstable(smallest.loc[[few, many]]).any(),
        "largest_ratio": ratio,
        "largest_unstable": _unstable(largest.loc[[few, many]]).any(),
        "ring_ratio": ring,
        "word": {"slower than": "more than", "faster than": "less than", "as fast as": "as"}[compare(ratio, ring)],
    }
    return {"more": more}


def oversubscribed(rows: pd.DataFrame) -> list[str]:
    """Name the cells with more ranks than cores: `4 ranks on 2 cores`."""
    cells = ok(rows)[ok(rows)["oversubscribed"]].drop_duplicates(CELL)
    return [f"{ranks} on {cores:.0f} cores" for ranks, cores in zip(cells["ranks"], cells["cores"], strict=True)]


def backends_compared(rows: pd.DataFrame) -> pd.Series:
    """Return gloo's time over NCCL's by size and ranks; empty unless both were measured for the same."""
    found = bursts(ok(rows))
    gloo, nccl = (found[found["backend"] == name] for name in ("gloo", "nccl"))
    return _ratio(gloo, nccl, ["world_size", "size_bytes"])


def single_over_burst(rows: pd.DataFrame) -> list[dict]:
    """Give, per backend and clock, the time of a single call over that in a burst, by size and ranks."""
    found = []
    for clock in ("host", "cuda_events"):
        for backend, group in ok(rows).groupby("backend", sort=False):
            ratio = _ratio(singles(group, clock), bursts(group), [*CELL, "size_bytes"])
            if len(ratio):
                low, high = (ratio[ratio.index.str.startswith(f"{size},")] for size in _ends(group))
                found.append({"backend": backend, "clock": clock, "smallest": low, "largest": high})
    return found


def direct_nccl(rows: pd.DataFrame) -> dict:
    """Hold NCCL out of place against in place, and torch against NCCL itself; empty where it was not called."""
    found = ok(rows)
    out, inside = (calls(found, "burst", "nccl", place) for place in ("out_of_place", "in_place"))
    keys = [*CELL, "size_bytes"]
    placement, torch_over = _ratio(out, inside, keys), _ratio(bursts(found), inside, keys)
    return {"placement": placement, "torch": torch_over} if len(placement) else {}


def latencies(rows: pd.DataFrame) -> list[dict]:
    """Give, per backend, what the fit to bursts says: latency, half-way size and largest residual by ranks."""
    table = fits(rows)
    if table.empty:
        return []
    found = []
    for backend, group in table[table["timing"] == "burst"].groupby("backend", sort=False):
        group = group.set_index("ranks")
        unstable = group["unstable"]
        found.append(
            {
                "backend": backend,
                "latency_ms": mark_unstable(group["latency_us"] / 1e3, unstable),
                "half_mb": mark_unstable(group["half_mb"], unstable),
                "busbw": mark_unstable(group["busbw_gb_per_s"], unstable),
                "residual": mark_unstable(group["worst_residual"].abs(), unstable),
                "without_latency": list(group.index[group["latency_us"] == 0]),
            }
        )
    return found


def _ratio(above: pd.DataFrame, below: pd.DataFrame, keys: list[str]) -> pd.Series:
    """Divide the median times of rows that agree in the keys, named `10 MB, 2 ranks`; mark the unstable."""
    paired = above.merge(below, on=keys, suffixes=("", "_below"))
    names = [f"{size}, {ranks}" for size, ranks in zip(paired["size"], paired["ranks"], strict=True)]
    ratios = pd.Series(
        (paired["median_ms"] / paired["median_ms_below"]).to_numpy(), index=pd.Index(names, dtype=object)
    )
    return mark_unstable(ratios, (paired["status"] == "unstable") | (paired["status_below"] == "unstable"))
