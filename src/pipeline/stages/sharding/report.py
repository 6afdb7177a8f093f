"""The sharding section: what sharing the optimizer's state out saves in memory, and costs in time and bytes."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report import phases, sharded, ways
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import gb, number, text, times
from pipeline.report.frame import in_order
from pipeline.report.section import Section
from pipeline.report.table import Table
from pipeline.stages.sharding.cell import MOMENTS

PLAIN, OURS, TORCHS = "AdamW in full", "our ShardedOptimizer", "torch ZeroRedundancyOptimizer"
NAMES = {"adamw": PLAIN, "sharded": OURS, "torch_zero": TORCHS}
AFTER = "after_step"
# Of a step as it goes on and on: the first one begins without optimizer state.
TOLD = {"initialised": "initialised", "before_step": "before the optimizer's step", AFTER: "after it"}
MOST_TABLES = 1


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the sharding stage."""
    rows = ways.named(rows, rows["impl"].map(NAMES))
    held = rows[(rows["moment"] == AFTER) | (rows["kind"] == "peak") | rows["sent_bytes"].notna()]
    steps = sharded.with_bytes(ways.whole_steps(rows, list(NAMES.values()), PLAIN), held)
    steps = steps.assign(agree=ways.agreement(steps, ["rank_difference", "weight_difference"]))
    cases = ways.by_trust(steps)
    if not cases:
        return Section("No whole step has a time.")
    columns = [*sharded.BYTES, ("weights agree", "agree", text)]
    tables = [ways.table(f"ways_{place}", own, PLAIN, columns) for place, own in enumerate(cases, start=1)]
    own = rows[rows["case"] == cases[0]["case"].iloc[0]]
    return Section(
        sharded.answer(cases[0], OURS, OURS, PLAIN),
        [*tables[:MOST_TABLES], sharded.memory(steps, held)],
        sharded.changes(cases[0], "shard the optimizer's state", [OURS, TORCHS], PLAIN),
        for_course=[
            _asked(cases[0], own),
            _moments(own),
            _timeline(own),
        ],
    )


def _timeline(rows: pd.DataFrame) -> Chart:
    """Draw the memory of a warm step, a line an optimizer."""
    drawn = rows[rows["measures"] == "timeline"].reindex(columns=["case", "way", "events", "active_bytes"])
    drawn = drawn.explode(["events", "active_bytes"]).astype({"events": float, "active_bytes": float})
    drawn = drawn.assign(gb=drawn["active_bytes"] / 1e9)
    title = "Memory of a rank over a warm step, with the optimizer's state in full and shared out"
    return Chart(
        "timeline", title, drawn, "line", Axis("events", "allocations and releases so far"), Axis("gb", "GB"), "way"
    )


def _moments(rows: pd.DataFrame) -> Table:
    """Write memory at three moments of a step, a row an optimizer and moment."""
    memory = rows[rows["moment"].isin(TOLD)]
    wide = memory.pivot_table(index=["way", "moment"], columns="kind", values="measured_bytes", sort=False)
    wide = in_order(wide.reset_index(), ["way", "moment"], {"way": list(NAMES.values()), "moment": MOMENTS})
    columns = [
        ("way", "way", text),
        ("", "told", text),
        ("peak since the last moment (GB)", "peak", gb),
        ("allocated now (GB)", "allocated", gb),
        ("parameters (GB)", "parameters", gb),
        ("gradients (GB)", "gradients", gb),
        ("optimizer state (GB)", "optimizer_state", gb),
    ]
    caption = (
        f"Memory of the fullest rank, GB ({rows['case'].iloc[0]}): peak since the last moment / allocated now / of it "
        "parameters / gradients / optimizer state:"
    )
    return Table("moments", caption, wide.assign(told=wide["moment"].map(TOLD)), columns, all_rows=True, across="")


def _asked(steps: pd.DataFrame, rows: pd.DataFrame) -> Table:
    """Write the steps of a case with their optimizer's phase, and what a rank sends beside ZeRO's first stage.

    That reduce-scatters gradients and all-gathers parameters, which together sends as much as one all-reduce.
    """
    sent = rows.pivot_table(index="way", columns="collective", values="sent_bytes", sort=False)
    sent = sent.reindex(columns=["allreduce", "broadcast"])
    sent = sent.assign(times=(sent["allreduce"] + sent["broadcast"]) / sent["allreduce"])
    steps = steps.drop(columns=[*sent], errors="ignore").merge(sent, "left", left_on="way", right_index=True)
    optimizer = phases.phases(rows).rows[["way", "optimizer"]]
    columns: ways.Columns = [
        ("optimizer's phase (ms)", "optimizer", number),
        ("sends for gradients (GB)", "allreduce", gb),
        ("for parameters (GB)", "broadcast", gb),
        ("times ZeRO stage 1's bytes", "times", times),
        ("weights agree", "agree", text),
    ]
    return ways.table("asked", steps.merge(optimizer, "left", "way"), PLAIN, columns)
