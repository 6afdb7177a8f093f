"""Report ways to train on several ranks, for ddp, sharding and fsdp: steps, memory, traffic, captured steps.

Rows name their `way` and their `case`, the cell in words.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import number, written
from pipeline.report.frame import WHOLE_STEP, in_order, with_figures
from pipeline.report.section import Change, say
from pipeline.report.table import Table, filled, named
from pipeline.report.versus import FASTER, beside

CASE = "{size}, {precision}, {world_size} ranks, batch {batch_size_per_rank} a rank, context {context_length}"
NO_TIME = "No whole step has a time."
MOSTLY = 0.5
PHASES = ("forward", "backward", "communication", "optimizer")
KINDS = {"parameters": "parameters", "gradients": "gradients", "optimizer_state": "optimizer"}
HEADS = {
    "each_repeat": "each repeat, ms",
    "rank_bytes": "memory a rank",
    "sent_bytes": "sent a step",
    "loss": "loss after the same steps",
    "share_pct": "its share of the step",
    "span_ms": "captured step, ms",
    "hidden_ms": "both at once, ms",
    "hidden_pct": "share hidden",
    "exposed_pct": "share exposed",
}
PARTS = 80  # of a captured step, as drawn


def of_cases(rows: pd.DataFrame, ways: Sequence[str]) -> pd.DataFrame:
    """Add the way and the case of rows."""
    return rows.assign(way=ways, case=written(rows, CASE))


def whole_steps(rows: pd.DataFrame, order: Sequence[str], base: str) -> pd.DataFrame:
    """Return the whole steps by the host's clock, each beside the way `base` of its case (`versus.beside`).

    Added also: `each_repeat`, their medians in ms.
    """
    steps = rows[(rows["phase"] == WHOLE_STEP) & (rows["clock"] == "host")]
    steps = in_order(steps, ["case", "way"], {"case": list(dict.fromkeys(steps["case"])), "way": order})
    medians = [each if isinstance(each, list) else [] for each in steps["medians_ms"]]
    steps = steps.assign(each_repeat=[" / ".join(map(number, each)) if len(each) > 1 else None for each in medians])
    return beside(steps, ["case"], steps["way"] == base)


def by_trust(steps: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the steps of each case with figures: first those that the host does not limit, with most repeats."""

    def doubt(steps: pd.DataFrame) -> tuple[bool, float, float]:
        limited_by_host = steps["limited_by"].eq("host").mean()
        return limited_by_host >= MOSTLY, -steps["repeats"].max(), steps["status"].ne("ok").mean()

    return sorted((own for _, own in steps.groupby("case", sort=False) if len(with_figures(own))), key=doubt)


def table(name: str, steps: pd.DataFrame, base: str, names: str, which: str = "") -> Table:
    """Write the steps of one case, a row a way; names: further columns. Those without any value are left out.

    which: in words, what of the steps are told.
    """
    cards = {card for cards in steps["cards"].dropna() for card in cards.split(", ")}
    limits = list(steps["limited_by"].dropna().unique())
    told = [f"repeats: {steps['repeats'].max():.0f}", f"groups of GPUs: {len(cards)}"]
    told += [f"limited by: {limits[0]}"] if len(limits) == 1 else []
    first = f"way median_ms each_repeat gain verdict {'limited_by' if len(limits) > 1 else ''} exposed_communication_ms"
    columns = named(steps, f"{first} {names}", gain=f"times as fast as {base} (interval)", **HEADS)
    caption = "; ".join([steps["case"].iloc[0], *told, *filter(None, [which])])
    return Table(name, f"{caption}:", steps, filled(steps, columns))


def agreement(steps: pd.DataFrame, differences: Sequence[str]) -> pd.Series:
    """Say of each way whether its weights are as near as rounding allows; None where they were not compared."""
    largest = steps[list(differences)].max(axis=1)
    words = (largest <= steps["weight_tolerance"]).map({True: "yes", False: "no"})
    return words.astype(object).where(largest.notna(), None)


def with_bytes(steps: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Add what the fullest rank has in memory and what a rank sends, of the rows that measure these.

    state_bytes: parameters, gradients and optimizer state after a step; peak_bytes; sent_bytes; rank_bytes: the peak,
    on a CPU the state.
    """
    read = rows[["case", "way", "sent_bytes"]].assign(
        state_bytes=rows["measured_bytes"].where(rows["kind"].isin(KINDS)),
        peak_bytes=rows["measured_bytes"].where(rows["kind"] == "peak"),
    )
    each = read.groupby(["case", "way"])
    found = each[["state_bytes", "sent_bytes"]].sum(min_count=1).join(each["peak_bytes"].max())
    steps = steps.drop(columns=[*found], errors="ignore").join(found, on=["case", "way"])
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


def answer(steps: pd.DataFrame, ours: Sequence[str], memory: str = "rank_bytes") -> str:
    """Say what the fastest of our ways takes beside the base; memory: the column of what a rank needs."""
    best = steps[steps["way"].isin(ours) & steps["ratio"].notna()].sort_values("median_ms").head(1)
    if best.empty:
        return only(steps)
    new, old = best.iloc[0], steps.loc[best["base"].iloc[0]]
    cost = Change.between("", "", old, new, memory)
    return say(
        "{new[case]}: a step takes {cost.after} with {new[way]}; {cost.before} with {old[way]}: {new[gain]} as fast "
        "({new[verdict]}).",
        **{"cost": cost, "old": old, "new": new},
    )


def only(steps: pd.DataFrame) -> str:
    """Say which ways have figures where one to compare with has none."""
    ways = ", ".join(with_figures(steps)["way"]) or "none"
    return say("{case}: of {ways} alone there are figures.", case=steps["case"].iloc[0], ways=ways)


def changes(steps: pd.DataFrame, what: str, ways: Sequence[str], memory: str = "rank_bytes") -> list[Change]:
    """Return the fastest of these ways as a change from the base, where it is faster; what: with `{way}` filled in."""
    found = steps[steps["way"].isin(ways) & (steps["verdict"] == FASTER)].sort_values("median_ms").head(1)
    return [
        Change.between(what.format(**row), row["case"], steps.loc[row["base"]], row, memory)
        for _, row in found.iterrows()
    ]


def phases(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the times of each way's phases, of one case, by the GPU's clock if there is one, with `share_pct`.

    share_pct: of the wait for gradients after backward.
    """
    by_gpu = rows["clock"] == "cuda_events"
    own = rows[by_gpu if by_gpu.any() else rows["clock"] == "host"].dropna(subset="median_ms")
    wide = own.pivot_table(index="way", columns="phase", values="median_ms", sort=False)
    wide = wide.reindex(columns=[*PHASES, WHOLE_STEP])
    return wide.assign(share_pct=100 * wide["communication"] / wide[WHOLE_STEP])


def captures(steps: pd.DataFrame, captured: pd.DataFrame, names: str) -> Table:
    """Write one captured step a way beside the timed one; names: further columns."""
    captured = captured.join(steps.set_index("way")["median_ms"].rename("timed_step_ms"), on="way")
    columns = named(captured, f"way timed_step_ms span_ms computation_ms {names}", **HEADS)
    return Table("captures", f"{steps['case'].iloc[0]}: one captured step each:", captured, columns)


def lanes(captured: pd.DataFrame, kinds: Sequence[str]) -> Chart:
    """Draw captured steps: for each kind of work the share of each part of the step in which it ran."""
    drawn = [
        {"way": row["way"], "kind": kind, "at_ms": row["span_ms"] * place / PARTS, "busy_pct": part.mean()}
        for row in captured.to_dict("records")
        for kind in kinds
        if isinstance(busy := row.get(f"{kind}_busy_pct"), list)
        for place, part in enumerate(np.array_split(busy, PARTS))
    ]
    rows = pd.DataFrame(drawn, columns=["way", "kind", "at_ms", "busy_pct"])
    axes = Axis("at_ms", "ms of the step"), Axis("busy_pct", "busy (%)")
    title = f"One captured step, when each lane is busy: {', '.join(dict.fromkeys(rows['kind']))}"
    return Chart("capture", title, rows, "line", *axes, "kind", panel="way")
