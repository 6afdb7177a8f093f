"""The fsdp section: what fully sharded training saves in memory, and what it costs in time and bytes."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report import phases, sharded, ways
from pipeline.report.formats import gb, number, percent, significant, text, times
from pipeline.report.section import Section
from pipeline.report.table import Table

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
    rows = ways.named(rows, rows["impl"].map(NAMES))
    steps = sharded.with_bytes(ways.whole_steps(rows, list(NAMES.values()), DDP), rows)
    cases = ways.by_trust(steps)
    if not cases:
        return Section("No whole step has a time.")
    lead = cases[0]
    columns = [
        *sharded.BYTES,
        ("loss", "loss", lambda loss: significant(loss, 4)),
    ]
    tables = [ways.table(f"ways_{place}", own, DDP, columns) for place, own in enumerate(cases, start=1)]
    own = rows[rows["case"] == lead["case"].iloc[0]]
    captured = own[own["measures"] == "capture"]
    return Section(
        sharded.answer(lead, OURS, OURS, DDP),
        [*tables[:MOST_TABLES], sharded.memory(steps, rows)],
        sharded.changes(lead, "shard parameters, gradients and optimizer state", [OURS, TORCHS], DDP),
        for_course=[
            *tables[MOST_TABLES:],
            _saved(steps),
            _captures(lead, captured[captured["way"].isin([OURS, TORCHS])]),
            phases.lanes(
                "capture",
                "One captured step: when it computes, gathers parameters, scatters gradients",
                captured[captured["way"].isin([OURS, TORCHS])],
                ("computation", "gather", "scatter", "waiting"),
            ),
        ],
    )


def _saved(steps: pd.DataFrame) -> Table:
    """Write the memory of each fully sharded way beside that with the optimizer's state alone sharded."""
    before = steps[steps["way"] == DDP_SHARDED].set_index("case")["rank_bytes"]
    after = steps[steps["way"].isin([OURS, TORCHS])]
    after = after.assign(before=after["case"].map(before))
    after = after.assign(saved=after["before"] - after["rank_bytes"], times=after["before"] / after["rank_bytes"])
    columns = [
        ("case", "case", text),
        ("optimizer's state alone sharded, GB", "before", gb),
        ("", "way", text),
        ("GB a rank", "rank_bytes", gb),
        ("saved GB", "saved", gb),
        ("times less", "times", times),
    ]
    caption = "Peak memory of the fullest rank with everything sharded, GB / saved, GB / times less:"
    return Table("saved", caption, after, columns, all_rows=True, across="")


def _captures(steps: pd.DataFrame, captured: pd.DataFrame) -> Table:
    """Write what of gathering and scattering delays a captured step, beside the timed one."""
    captured = captured.join(steps.set_index("way")["median_ms"].rename("timed_step_ms"), on="way")
    exposed_pct = 100 * captured["gather_exposed_ms"] / captured["gather_ms"]
    columns = [
        ("way", "way", text),
        ("timed step (ms)", "timed_step_ms", number),
        ("captured step (ms)", "span_ms", number),
        ("computes (ms)", "computation_ms", number),
        ("gathers (ms)", "gather_ms", number),
        ("of it exposed (ms)", "gather_exposed_ms", number),
        ("exposed share", "exposed_pct", percent),
        ("scatters (ms)", "scatter_ms", number),
        ("of it exposed (ms)", "scatter_exposed_ms", number),
    ]
    caption = f"{steps['case'].iloc[0]}: one captured step each. Exposed: nothing computes meanwhile."
    return Table("captures", caption, captured.assign(exposed_pct=exposed_pct), columns)
