"""The sharding section: what sharing the optimizer's state out saves in memory, and costs in time and bytes."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report import phases, sharded, ways
from pipeline.report.formats import gb, text, times
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
            _moments(own),
            sharded.by_formula(own[own["moment"].isin([AFTER]) | own["calls"].notna()]),
            phases.phases(own),
            _traffic(own),
        ],
    )


def _moments(rows: pd.DataFrame) -> Table:
    """Write memory at three moments of a step, a row an optimizer and moment."""
    memory = rows[rows["moment"].isin(TOLD)]
    wide = memory.pivot_table(index=["way", "moment"], columns="kind", values="measured_bytes", sort=False)
    wide = in_order(wide.reset_index(), ["way", "moment"], {"way": list(NAMES.values()), "moment": MOMENTS})
    columns = [
        ("way", "way", text),
        ("moment", "told", text),
        ("peak since the last moment (GB)", "peak", gb),
        ("allocated now (GB)", "allocated", gb),
        ("parameters (GB)", "parameters", gb),
        ("gradients (GB)", "gradients", gb),
        ("optimizer state (GB)", "optimizer_state", gb),
    ]
    caption = f"Memory of the fullest rank, {rows['case'].iloc[0]}:"
    return Table("moments", caption, wide.assign(told=wide["moment"].map(TOLD)), columns, all_rows=True)


def _traffic(rows: pd.DataFrame) -> Table:
    """Write what a rank sends a step beside ZeRO's first stage: a reduce-scatter and an all-gather, one all-reduce."""
    sent = rows.pivot_table(index="way", columns="collective", values="sent_bytes", sort=False)
    sent = sent.reindex(columns=["allreduce", "broadcast"]).reset_index()
    total = sent["allreduce"] + sent["broadcast"]
    columns = [
        ("way", "way", text),
        ("sent for gradients: all-reduce (GB)", "allreduce", gb),
        ("sent for parameters: broadcasts (GB)", "broadcast", gb),
        ("together (GB)", "together", gb),
        ("ZeRO stage 1 would send (GB)", "allreduce", gb),
        ("times as much", "times", times),
    ]
    caption = "What each rank sends a step at least:"
    return Table("traffic", caption, sent.assign(together=total, times=total / sent["allreduce"]), columns)
