"""The sharding section: what sharding the optimizer's state saves in memory, and costs in time and bytes sent."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report import ways
from pipeline.report.chart import Chart
from pipeline.report.frame import in_order, with_values
from pipeline.report.section import Section
from pipeline.report.table import Table
from pipeline.report.words import Words

WORDS = Words(__file__)
PLAIN, OURS, TORCHS = "unsharded AdamW", "our ShardedOptimizer", "torch ZeroRedundancyOptimizer"
NAMES = {"adamw": PLAIN, "sharded": OURS, "torch_zero": TORCHS}
# The step is a warm one: the first one begins without optimizer state.
MOMENT_NAMES = {"initialised": "initialised", "before_step": "before the optimizer's step", "after_step": "after it"}


def build(rows: pd.DataFrame, other_stages: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the sharding stage."""
    rows = ways.of_cases(rows, rows["impl"].map(NAMES))
    steps = ways.with_bytes(ways.whole_steps(rows, list(NAMES.values()), PLAIN), rows)
    steps = steps.assign(weights_agree=ways.agreement(steps, ["rank_difference", "weight_difference"]))
    cases = ways.by_trust(steps, [PLAIN, OURS, TORCHS])
    if not cases:
        return Section(ways.WORDS.say("no_time"))
    lead, of_case = cases[0], rows[rows["case"] == cases[0]["case"].iloc[0]]
    lead = lead.join(ways.phases(of_case)["optimizer_phase_ms"], on="way")
    names = "optimizer_phase_ms sent_bytes rank_bytes weights_agree"
    return Section(
        ways.answer(lead, [OURS], peer=TORCHS),
        [
            ways.table("ways_1", lead, PLAIN, names),
            _scaling(steps),
            ways.memory_chart(steps, rows[rows["moment"] == "after_step"]),
        ],
        ways.changes(lead, WORDS.defined["change"], [OURS, TORCHS]),
        for_course=[_moments(of_case), _timeline(of_case)],
    )


def _scaling(steps: pd.DataFrame) -> Table:
    return ways.scaling_table(
        ways.fastest_by_ranks(steps, [OURS], [PLAIN]), PLAIN, "rank_bytes exposed_communication_ms"
    )


def _timeline(rows: pd.DataFrame) -> Chart:
    """Draw the memory of a warm step, one line per optimizer."""
    drawn = with_values(rows[rows["measures"] == "timeline"])[["way", "events", "active_bytes"]]
    drawn = drawn.explode(["events", "active_bytes"]).astype({"events": float, "active_bytes": float})
    return WORDS.chart("timeline", drawn.assign(gb=drawn["active_bytes"] / 1e9), "line", "events", "gb", "way")


def _moments(rows: pd.DataFrame) -> Table:
    """Tabulate memory by optimizer and moment, without torch's sharded one: it holds the same as ours."""
    memory = rows[rows["moment"].isin(MOMENT_NAMES) & (rows["impl"] != "torch_zero")]
    wide = memory.pivot_table(index=["way", "moment"], columns="kind", values="measured_bytes", sort=False)
    orders = {"way": list(NAMES.values()), "moment": list(MOMENT_NAMES)}
    wide = in_order(wide.add_suffix("_bytes").reset_index(), [*orders], orders)
    names = "way moment_name peak_bytes allocated_bytes parameters_bytes gradients_bytes optimizer_state_bytes"
    return WORDS.table(
        "moments", wide.assign(moment_name=wide["moment"].map(MOMENT_NAMES)), names, case=rows["case"].iloc[0]
    )
