"""Report training with state sharded over ranks, for sharding and fsdp: memory, traffic, savings."""

from collections.abc import Sequence

import pandas as pd

from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import data_size, gb, ms
from pipeline.report.frame import in_order, with_figures
from pipeline.report.section import Change, say
from pipeline.report.versus import FASTER

KINDS = {"parameters": "parameters", "gradients": "gradients", "optimizer_state": "optimizer"}
COLLECTIVES = {"allreduce": "all-reduce", "allgather_base": "all-gather", "reduce_scatter_base": "reduce-scatter"}
BYTES = [("sent GB", "sent_bytes", gb), ("GB a rank", "rank_bytes", gb)]


def with_bytes(steps: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Add what the fullest rank has in memory and what a rank sends, of the rows that measure these.

    state_bytes: parameters, gradients and optimizer state after a step; peak_bytes; sent_bytes; rank_bytes: the peak,
    on a CPU the state.
    """
    at = pd.MultiIndex.from_frame(steps[["case", "way"]])
    parts = {"state": rows["kind"].isin(KINDS), "peak": rows["kind"] == "peak", "sent": rows["sent_bytes"].notna()}
    for name, are_meant in parts.items():
        own = rows[are_meant]
        total = own["sent_bytes" if name == "sent" else "measured_bytes"].groupby([own["case"], own["way"]])
        found = total.max() if name == "peak" else total.sum()
        steps = steps.assign(**{f"{name}_bytes": found.reindex(at).to_numpy(dtype=float)})
    return steps.assign(rank_bytes=steps["peak_bytes"].fillna(steps["state_bytes"]))


def memory(steps: pd.DataFrame, rows: pd.DataFrame) -> Chart:
    """Draw what the fullest rank holds at its peak, by kind."""
    kinds = rows[rows["kind"].isin(KINDS)].assign(name=rows["kind"].map(KINDS), bytes=rows["measured_bytes"])
    rest = steps.assign(name="other", bytes=steps["peak_bytes"] - steps["state_bytes"])
    order = {name: list(dict.fromkeys(steps[name])) for name in ("case", "way")} | {"name": [*KINDS.values(), "other"]}
    drawn = in_order(pd.concat([kinds, rest]), [*order], order)
    drawn = drawn.assign(gb=drawn["bytes"].clip(lower=0) / 1e9)
    title = "Memory of the fullest rank at its peak, by what it holds; other: activations, temporaries"
    return Chart("memory", title, drawn, "stack", Axis("gb", "GB"), Axis("way"), "name", panel="case")


def answer(steps: pd.DataFrame, what: str, ours: str, base: str) -> str:
    """Say what one way takes beside another."""
    way = with_figures(steps).set_index("way")
    if not {base, ours} <= {*way.index}:
        return say("{case}: of {ways} alone there are figures.", case=steps["case"].iloc[0], ways=", ".join(way.index))
    after, before = way.loc[ours], way.loc[base]
    return say(
        "{case}: {what} takes {ms} and {memory} a rank, {base} {ms_before} and {memory_before}: "
        "{gain} as fast ({verdict}).",
        case=after["case"],
        what=what,
        ms=ms(after["median_ms"]),
        memory=data_size(after["rank_bytes"]),
        base=base,
        ms_before=ms(before["median_ms"]),
        memory_before=data_size(before["rank_bytes"]),
        gain=after["gain"],
        verdict=after["verdict"],
    )


def changes(steps: pd.DataFrame, what: str, ways: Sequence[str], base: str) -> list[Change]:
    """Return the fastest of these ways as a change from another, where it is faster."""
    found = steps[steps["way"].isin(ways) & (steps["verdict"] == FASTER)].nsmallest(1, "median_ms")
    before = steps[steps["way"] == base]
    return [
        Change(f"{what} ({row['way']})", row["case"], _cost(before.iloc[0]), _cost(row), row.to_dict())
        for _, row in found.iterrows()
    ]


def _cost(step: pd.Series) -> str:
    return f"{ms(step['median_ms'])}, {data_size(step['rank_bytes'])}"
