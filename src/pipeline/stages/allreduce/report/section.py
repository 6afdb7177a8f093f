"""The allreduce section: the bus bandwidth reached, from which size on, and what a call costs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pipeline.formulas.collectives import all_reduce_bus_factor
from pipeline.report.markup import Markdown
from pipeline.report.outcomes import not_measured, nothing_measured
from pipeline.report.page_parts import MOST_TABLE_ROWS, Action, Figure, Problem, Section, Table, say
from pipeline.report.section import count, listing, ms, number, ratio
from pipeline.report.tables import median_cells, number_cells, significant
from pipeline.stages.allreduce.report.facts import Group, calls, completed, groups, link_gb_per_s
from pipeline.stages.allreduce.report.figures import busbw

TITLE = "How fast is an all-reduce on one node?"
EXERCISE = "distributed_communication_single_node"
MOST_SIZES = 4
WASTED = 0.5  # a call that reaches less than this share of the best bus bandwidth is too small


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame] | None = None) -> Section:
    """Build the section from the rows of all its tables; beside: those of the stage ceilings."""
    asked = completed(rows)
    asked = pd.concat([calls(asked, "burst"), calls(asked, "single")])
    measured = groups(rows)
    if not measured:
        return Section(TITLE, EXERCISE, nothing_measured(asked))
    sentences = [_own_cost(measured), _crowded(measured), not_measured(asked, "group")]
    return Section(
        TITLE,
        EXERCISE,
        _answer(measured),
        parts=[
            Figure(
                "busbw",
                _reached("Bus bandwidth over size: {reached}", measured),
                busbw(measured, link_gb_per_s(beside)),
            ),
            _table(measured),
            *([Markdown(" ").join(filter(None, sentences))] if any(sentences) else []),
        ],
        method=_method(rows),
        actions=_actions(measured),
        problems=[Problem("distributed_communication_single_node", _problem(measured))],
    )


def _backends(measured: Sequence[Group]) -> dict[str, list[Group]]:
    names = dict.fromkeys(group.backend for group in measured)
    return {name: [group for group in measured if group.backend == name] for name in names}


def _answer(measured: Sequence[Group]) -> Markdown:
    sentences = [_reached("The best bus bandwidth is {reached}.", measured)]
    for backend, alike in _backends(measured).items():
        best = _best(alike)
        enough = best.bursts[best.bursts["busbw_gb_per_s"] >= WASTED * best.best["busbw_gb_per_s"]]
        if len(best.bursts) > 1:
            reached = "at" if enough.index[0] == best.bursts.index[0] else "from"
            sentence = "{backend} reaches half of it {reached} {size}{cost}."
            cost = f"; a call costs {ms(1e3 * best.cost.latency_s)} plus its bytes" if _has_latency(best) else ""
            sentences.append(say(sentence, backend=backend, reached=reached, size=enough["size"].iloc[0], cost=cost))
    return Markdown(" ").join(sentences)


def _best(alike: Sequence[Group]) -> Group:
    return max(alike, key=lambda group: group.best["busbw_gb_per_s"])


def _has_latency(group: Group) -> bool:
    return group.cost is not None and group.cost.latency_s > 0


def _reached(sentence: str, measured: Sequence[Group]) -> Markdown:
    bests = [
        say(
            "{busbw} GB/s with {backend} ({size}, {ranks} ranks)",
            busbw=number(best.best["busbw_gb_per_s"]),
            backend=backend,
            size=best.best["size"],
            ranks=best.world_size,
        )
        for backend, best in ((backend, _best(alike)) for backend, alike in _backends(measured).items())
    ]
    return say(sentence, reached=listing(bests))


def _table(measured: Sequence[Group]) -> Table:
    """Write times at both ends of the sizes and bus bandwidths, a row a backend and number of ranks."""
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
    return Table(Markdown(title), pd.DataFrame(lines))


def _own_cost(measured: Sequence[Group]) -> Markdown:
    """Say what a single call takes over one in a burst, and torch.distributed over NCCL itself, where most."""
    sentences = []
    single = _largest_ratio(measured, lambda group: (group.singles, group.bursts))
    if single is not None:
        words = "A single call takes up to {times} the time of one in a burst ({where})."
        sentences.append(say(words, times=ratio(single["ratio"]), where=single["where"]))
    wrapped = _largest_ratio(measured, lambda group: (group.bursts, group.nccl))
    if wrapped is not None:
        words = "Through torch.distributed it takes at most {times} that of NCCL called directly ({where})."
        sentences.append(say(words, times=ratio(wrapped["ratio"]), where=wrapped["where"]))
    return Markdown(" ").join(sentences)


def _largest_ratio(
    measured: Sequence[Group], sides: Callable[[Group], tuple[pd.DataFrame, pd.DataFrame]]
) -> dict[str, Any] | None:
    """Return `ratio` and `where` of the largest ratio of two kinds of calls of one size; unstable ones are left out."""
    found: list[dict[str, Any]] = []
    for group in measured:
        above, below = (side[side["status"] == "ok"].set_index("size")["median_ms"] for side in sides(group))
        ratios = (above / below).dropna()
        found += [{"ratio": value, "where": f"{size}, {group.name}"} for size, value in ratios.items()]
    return max(found, key=lambda entry: entry["ratio"], default=None)


def _crowded(measured: Sequence[Group]) -> Markdown:
    names = [group.name for group in measured if group.bursts["oversubscribed"].eq(True).any()]
    return say("There were fewer cores than ranks: {names}.", names=listing(names)) if names else Markdown()


def _method(rows: pd.DataFrame) -> Markdown:
    return say(
        "Sums of fp32 between processes of one node, checked, then timed after {warmup} calls: back to back (a burst), "
        "or each between a barrier and a synchronisation (a single call). A time is that of the slowest rank; bus "
        "bandwidth is size over time, times 2·(n − 1) / n (nccl-tests).",
        warmup=count(rows["setting_warmup_calls"].max()),
    )


def _actions(measured: Sequence[Group]) -> list[Action]:
    """Advise larger messages where the smallest waste most of the bandwidth."""
    alike = _backends(measured)
    best = _best(alike.get("nccl", measured))
    smallest, largest = best.bursts.iloc[0], best.best
    if smallest["busbw_gb_per_s"] >= WASTED * largest["busbw_gb_per_s"]:
        return []
    enough = best.bursts[best.bursts["busbw_gb_per_s"] >= WASTED * largest["busbw_gb_per_s"]].iloc[0]
    why = say(
        "{name}: {small} reaches {low} GB/s, {size} {enough}, {large} {high}.",
        name=best.name,
        small=smallest["size"],
        low=number(smallest["busbw_gb_per_s"]),
        size=enough["size"],
        enough=number(enough["busbw_gb_per_s"]),
        large=largest["size"],
        high=number(largest["busbw_gb_per_s"]),
    )
    return [Action(5, say("**All-reduce {size} or more at once.**", size=enough["size"]), why)]


def _problem(measured: Sequence[Group]) -> Markdown:
    sentences = []
    for backend, alike in _backends(measured).items():
        fewest, most = alike[0], alike[-1]
        size = fewest.bursts["size"].iloc[-1]
        times_ms = [group.bursts.set_index("size")["median_ms"].get(size) for group in (fewest, most)]
        more = ""
        if most is not fewest and times_ms[1]:
            ring = all_reduce_bus_factor(most.world_size) / all_reduce_bus_factor(fewest.world_size)
            more = (
                f", with {most.world_size} ranks {ratio(times_ms[1] / times_ms[0])} that (a ring over links of one "
                f"speed: {ratio(ring)})"
            )
        words = "{backend}: {size} take {time} with {ranks} ranks{more}."
        sentences.append(
            say(words, backend=backend, size=size, time=ms(times_ms[0]), ranks=fewest.world_size, more=more)
        )
    return Markdown(" ").join(sentences)
