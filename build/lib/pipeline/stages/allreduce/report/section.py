"""The allreduce section: the bus bandwidth reached, from which size on, and what a call costs."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from pipeline.formulas.collectives import all_reduce_bus_factor
from pipeline.report.outcomes import not_measured, nothing_measured
from pipeline.report.page_parts import MOST_TABLE_ROWS, Figure, Problem, Section, Table
from pipeline.report.section import listing, ms, number, ratio
from pipeline.report.tables import median_cells, number_cells, significant
from pipeline.stages.allreduce.report.facts import Group, calls, groups, link_gb_per_s, named
from pipeline.stages.allreduce.report.figures import busbw

TITLE = "How fast is an all-reduce?"
EXERCISE = "distributed_communication_single_node"
MOST_SIZES = 4


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame] | None = None) -> Section:
    """Build the section from the rows of all its tables; beside: those of the stage ceilings."""
    asked = named(rows)
    asked = pd.concat([calls(asked, "burst"), calls(asked, "single")])
    measured = groups(rows)
    if not measured:
        return Section(TITLE, EXERCISE, nothing_measured(asked))
    reached = listing(map(_reached, map(_best, _backends(measured))))
    place = "one node" if measured == _within(measured) else "one node or several"
    return Section(
        TITLE,
        EXERCISE,
        " ".join([f"The best bus bandwidth is {reached}.", *map(_half, _backends(measured))]).strip(),
        parts=[
            Figure("busbw", f"Bus bandwidth over size: {reached}", busbw(measured, link_gb_per_s(beside))),
            _table(measured),
            " ".join(filter(None, [*map(_across, _backends(measured)), _own_cost(measured), _crowded(measured)])),
            not_measured(asked, "group"),
        ],
        method=(
            f"Sums of fp32 between processes of {place}, checked, then timed after "
            f"{rows['setting_warmup_calls'].max()} calls: back to back (a burst), or each between a barrier and a "
            "synchronisation (a single call). A time is that of the slowest rank; bus bandwidth is size over time, "
            "times 2·(n − 1) / n (nccl-tests)."
        ),
        problems=[Problem(EXERCISE, " ".join(map(_growth, _backends(_within(measured)))))],
    )


def _backends(measured: Sequence[Group]) -> list[list[Group]]:
    """Return the groups of each backend."""
    names = dict.fromkeys(group.backend for group in measured)
    return [[group for group in measured if group.backend == name] for name in names]


def _best(alike: Sequence[Group]) -> Group:
    return max(alike, key=lambda group: group.best["busbw_gb_per_s"])


def _reached(group: Group) -> str:
    best = group.best
    how = [best["size"], group.ranks, *(["unstable"] if best["status"] == "unstable" else [])]
    return f"{number(best['busbw_gb_per_s'])} GB/s with {group.backend} ({', '.join(how)})"


def _within(measured: Sequence[Group]) -> list[Group]:
    """Return the groups of one node."""
    return [group for group in measured if group.nodes == 1]


def _across(alike: Sequence[Group]) -> str:
    """Say what a backend reaches over several nodes, beside its best within one; empty without both."""
    within, across = _within(alike), [group for group in alike if group.nodes > 1]
    if not within or not across:
        return ""
    over, inside = (_best(groups).best["busbw_gb_per_s"] for groups in (across, within))
    best = _best(across)
    where = f"({best.best['size']}, {best.ranks})"
    return (
        f"Over {best.nodes} nodes {best.backend} reaches {number(over)} GB/s {where}, {ratio(over / inside)} its best "
        "within one."
    )


def _half(alike: Sequence[Group]) -> str:
    """Say from which size on a backend reaches half of its best bandwidth, and what a call costs."""
    best = _best(alike)
    if len(best.bursts) < 2:
        return ""
    enough = best.bursts[best.bursts["busbw_gb_per_s"] >= best.best["busbw_gb_per_s"] / 2].iloc[0]
    latency_s = best.cost.latency_s if best.cost else 0
    size = f"{enough['size']} on"
    if enough.name == best.bursts.index[0]:
        size = f"the smallest size on, {enough['size']}"
    cost = f"; a call costs {ms(1e3 * latency_s)} plus the transfer" if latency_s else ""
    return f"{best.backend} reaches half of it from {size}{cost}."


def _table(measured: Sequence[Group]) -> Table:
    """Write times at both ends of the sizes and bus bandwidths, one row per backend and number of ranks."""
    shown = measured[:MOST_TABLE_ROWS]
    sizes = list(pd.concat([group.bursts for group in shown]).sort_values("size_bytes")["size"].unique())
    some = [sizes[place] for place in sorted({*np.linspace(0, len(sizes) - 1, MOST_SIZES).round().astype(int)})]
    lines = []
    for group in shown:
        by_size = group.bursts.set_index("size")
        times, bandwidths = median_cells(by_size), number_cells(by_size, "busbw_gb_per_s")
        lines.append(
            {
                "backend and ranks": group.name,
                **{f"{size} (ms)": times.get(size, "–") for size in dict.fromkeys([sizes[0], sizes[-1]])},
                "cost of a call (µs)": significant(group.cost.latency_s * 1e6) if group.cost else "–",
                **{f"{size} (GB/s)": bandwidths.get(size, "–") for size in some},
            }
        )
    title = "Median time of a call [quartiles], its fitted cost beyond that of its bytes, and bus bandwidth:"
    return Table(title, pd.DataFrame(lines))


def _own_cost(measured: Sequence[Group]) -> str:
    """Say what a single call takes over one in a burst, and torch.distributed over NCCL itself, where most."""
    single = _largest_ratio((group.name, group.singles, group.bursts) for group in measured)
    wrapped = _largest_ratio((group.name, group.bursts, group.nccl) for group in measured)
    sentences = {
        "A single call, by the host clock, takes up to {} the time of one in a burst ({}).": single,
        "Through torch.distributed it takes at most {} that of NCCL called directly ({}).": wrapped,
    }
    return " ".join(words.format(*found) for words, found in sentences.items() if found)


def _largest_ratio(sides: Iterable[tuple[str, pd.DataFrame, pd.DataFrame]]) -> tuple[str, str] | None:
    """Return the largest ratio of two kinds of calls of one size, and where; unstable ones are left out.

    sides: a group's name, and its calls of either kind.
    """
    found: list[tuple[float, str]] = []
    for name, *kinds in sides:
        above, below = (kind[kind["status"] == "ok"].set_index("size")["median_ms"] for kind in kinds)
        found += [(value, f"{size}, {name}") for size, value in (above / below).dropna().items()]
    value, where = max(found, default=(0.0, ""))
    return (ratio(value), where) if where else None


def _crowded(measured: Sequence[Group]) -> str:
    names = [group.name for group in measured if group.bursts["oversubscribed"].eq(True).any()]
    return f"There were fewer cores than ranks: {listing(names)}." if names else ""


def _growth(alike: Sequence[Group]) -> str:
    """Say what the largest size takes with the fewest ranks, and with the most beside what a ring would."""
    fewest, most = alike[0], alike[-1]
    size = fewest.bursts["size"].iloc[-1]
    fewest_ms, most_ms = (group.bursts.set_index("size")["median_ms"].get(size) for group in (fewest, most))
    more = ""
    if most is not fewest and most_ms:
        ring = ratio(all_reduce_bus_factor(most.world_size) / all_reduce_bus_factor(fewest.world_size))
        times = ratio(most_ms / fewest_ms)
        more = f", with {most.world_size} ranks {times} that (a ring over links of one speed: {ring})"
    return f"{fewest.backend}: {size} take {ms(fewest_ms)} with {fewest.world_size} ranks{more}."
