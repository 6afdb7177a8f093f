"""The fsdp section: what fully sharded training saves in memory, and what it costs in time and bytes."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report import ways
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import significant
from pipeline.report.section import Section
from pipeline.report.table import Table, named

DDP, DDP_SHARDED, OURS, TORCHS = "our DDP", "our DDP, sharded optimizer", "our FSDP", "torch fully_shard"
NAMES = {
    "none": "no communication",
    "ddp": DDP,
    "ddp_sharded": DDP_SHARDED,
    "fsdp": OURS,
    "fsdp_layers": "our FSDP by matrix",
    "torch_fsdp": TORCHS,
}
MOST_TABLES = 2


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the fsdp stage."""
    rows = ways.of_cases(rows, rows["impl"].map(NAMES))
    steps = ways.with_bytes(ways.whole_steps(rows, list(NAMES.values()), DDP), rows)
    steps["loss"] = steps["loss"].map(lambda loss: significant(loss, 4), na_action="ignore")
    cases = ways.by_trust(steps)
    if not cases:
        return Section(ways.NO_TIME)
    lead = cases[0]
    names = "sent_bytes rank_bytes loss"
    tables = [ways.table(f"ways_{place}", own, DDP, names) for place, own in enumerate(cases[:MOST_TABLES], start=1)]
    captured = rows[(rows["case"] == lead["case"].iloc[0]) & (rows["measures"] == "capture")]
    captured = captured[captured["way"].isin([OURS, TORCHS])]
    captured = captured.assign(exposed_pct=100 * captured["gather_exposed_ms"] / captured["gather_ms"])
    gathered = "gather_ms gather_exposed_ms exposed_pct scatter_ms scatter_exposed_ms"
    return Section(
        ways.answer(lead, [OURS]),
        [*tables, ways.memory(steps, rows)],
        ways.changes(lead, "shard parameters, gradients and optimizer state ({way})", [OURS, TORCHS]),
        for_course=[
            _saved(steps),
            ways.captures(lead, captured, gathered),
            ways.lanes(captured, ("computation", "gather", "scatter", "waiting")),
            _each_gather(captured),
        ],
    )


def _each_gather(captured: pd.DataFrame) -> Chart:
    """Draw how long each gather of a captured step takes, and how long nothing computes meanwhile."""
    kinds = {"each_gather_ms": "gather", "each_gather_exposed_ms": "exposed"}
    each = captured.dropna(subset=[*kinds])[["way", *kinds]].melt("way", var_name="kind", value_name="ms").explode("ms")
    each = each.assign(number=each.groupby(["way", "kind"]).cumcount() + 1, kind=each["kind"].map(kinds))
    title = "Each gather of the captured step: its time, and the part of it in which nothing computed"
    return Chart("gathers", title, each, "line", Axis("number", "gather"), Axis("ms", "ms"), "kind", panel="way")


def _saved(steps: pd.DataFrame) -> Table:
    """Write the memory of each fully sharded way beside that with the optimizer's state alone sharded."""
    before = steps[steps["way"] == DDP_SHARDED].set_index("case")["rank_bytes"].rename("state_alone_sharded_bytes")
    after = steps[steps["way"].isin([OURS, TORCHS])].join(before, on="case")
    after = after.assign(
        saved_bytes=after[before.name] - after["rank_bytes"], less_times=after[before.name] / after["rank_bytes"]
    )
    columns = named(after, f"case {before.name} way rank_bytes saved_bytes less_times", way="")
    caption = "Peak memory of the fullest rank with everything sharded / saved / times less, by way:"
    return Table("saved", caption, after, columns, all_rows=True, across="")
