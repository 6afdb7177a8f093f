"""The sharding section: what sharing the optimizer's state out saves in memory, and costs in time and bytes."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report import ways
from pipeline.report.formats import gb, text
from pipeline.report.frame import in_order
from pipeline.report.section import Section
from pipeline.report.table import Columns, Table
from pipeline.stages.sharding.cell import MOMENTS

PLAIN, OURS, TORCHS = "AdamW in full", "our ShardedOptimizer", "torch ZeroRedundancyOptimizer"
NAMES = {"adamw": PLAIN, "sharded": OURS, "torch_zero": TORCHS}
AFTER = "after_step"
# Of a step as it goes on and on: the first one begins without optimizer state.
TOLD = {"initialised": "initialised", "before_step": "before the optimizer's step", AFTER: "after it"}


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the sharding stage."""
    rows = ways.named(rows, rows["impl"].map(NAMES))
    held = rows[(rows["moment"] == AFTER) | (rows["kind"] == "peak") | rows["sent_bytes"].notna()]
    steps = ways.with_bytes(ways.whole_steps(rows, list(NAMES.values()), PLAIN), held)
    steps = steps.assign(weights_agree=ways.agreement(steps, ["rank_difference", "weight_difference"]))
    cases = ways.by_trust(steps)
    if not cases:
        return Section(ways.NO_TIME)
    lead = cases[0]
    own = rows[rows["case"] == lead["case"].iloc[0]]
    return Section(
        ways.answer(lead, [OURS]),
        [ways.table("ways_1", lead, PLAIN, "sent_bytes rank_bytes weights_agree"), ways.memory(steps, held)],
        ways.changes(lead, "shard the optimizer's state ({way})", [OURS, TORCHS]),
        for_course=[_asked(lead, own), _moments(own)],
    )


def _moments(rows: pd.DataFrame) -> Table:
    """Write memory at three moments of a step, a row an optimizer and moment."""
    memory = rows[rows["moment"].isin(TOLD)]
    wide = memory.pivot_table(index=["way", "moment"], columns="kind", values="measured_bytes", sort=False)
    wide = in_order(wide.reset_index(), ["way", "moment"], {"way": list(NAMES.values()), "moment": MOMENTS})
    held = [(name, name, gb) for name in ("peak", "allocated", "parameters", "gradients", "optimizer_state")]
    shown: Columns = [("way", "way", text), ("", "told", text), *held]
    caption = (
        f"Memory of the fullest rank, GB ({rows['case'].iloc[0]}): peak since the last moment / allocated now / of it "
        "parameters / gradients / optimizer state:"
    )
    return Table("moments", caption, wide.assign(told=wide["moment"].map(TOLD)), shown, all_rows=True, across="")


def _asked(steps: pd.DataFrame, rows: pd.DataFrame) -> Table:
    """Write the steps of a case with their optimizer's phase, and what a rank sends beside ZeRO's first stage.

    That reduce-scatters gradients and all-gathers parameters, which together sends as much as one all-reduce.
    """
    sent = rows.pivot_table(index="way", columns="collective", values="sent_bytes", sort=False)
    sent = sent.reindex(columns=["allreduce", "broadcast"])
    sent.columns = ["sent_for_gradients_bytes", "sent_for_parameters_bytes"]
    sent["zero_times"] = sent.sum(axis=1, skipna=False) / sent["sent_for_gradients_bytes"]
    optimizer = ways.phases(rows)["optimizer"].rename("optimizer_phase_ms")
    steps = steps.join(sent, on="way").join(optimizer, on="way")
    return ways.table("asked", steps, PLAIN, f"optimizer_phase_ms {' '.join(sent)} weights_agree")
