"""Build the fsdp section: what fully sharded training saves in memory, and what it costs in time and bytes."""

from collections.abc import Mapping
from dataclasses import fields

import pandas as pd

from pipeline.report import ways
from pipeline.report.chart import Chart
from pipeline.report.formats import significant
from pipeline.report.section import Section
from pipeline.report.table import Table
from pipeline.report.words import Words
from pipeline.stages.fsdp import prediction
from pipeline.stages.fsdp.cell import Cell

WORDS = Words(__file__)
DDP, DDP_SHARDED, OURS, TORCHS = "our DDP", "our DDP, sharded optimizer", "our FSDP", "torch fully_shard"
NAMES = {"none": "no communication", "ddp": DDP, "ddp_sharded": DDP_SHARDED, "fsdp": OURS}
NAMES |= {"fsdp_layers": "our FSDP by matrix", "torch_fsdp": TORCHS}


def build(rows: pd.DataFrame, other_stages: Mapping[str, pd.DataFrame]) -> Section:
    """Return the fsdp section; other_stages: rows of collectives, whose bandwidth predicts communication."""
    rows = ways.of_cases(rows, rows["impl"].map(NAMES))
    steps = ways.with_bytes(ways.whole_steps(rows, list(NAMES.values()), DDP), rows)
    steps["loss"] = steps["loss"].map(lambda loss: significant(loss, 4), na_action="ignore")
    cases = ways.by_trust(steps, [DDP, OURS, TORCHS])
    if not cases:
        return Section(ways.WORDS.say("no_time"))
    lead, of_case = cases[0], rows[rows["case"] == cases[0]["case"].iloc[0]]
    captured = ways.captures(of_case[of_case["way"].isin([OURS, TORCHS])], lead)
    captured = captured.assign(exposed_pct=100 * captured["gather_exposed_ms"] / captured["gather_ms"])
    tables = ways.tables(cases, DDP, "sent_bytes rank_bytes loss")
    exposed = "communication_ms exposed_by_formula_ms exposed_communication_ms"
    scaling = ways.scaling_table(_scaled(steps, rows, other_stages.get("collectives", pd.DataFrame())), TORCHS, exposed)
    times = "timed_step_ms span_ms computation_ms gather_ms gather_exposed_ms exposed_pct scatter_ms scatter_exposed_ms"
    return Section(
        ways.answer(lead, [OURS], peer=TORCHS),
        [*(tables if scaling.is_empty else [tables[0], scaling]), ways.memory_chart(steps, rows)],
        ways.changes(lead, WORDS.defined["change"], [OURS, TORCHS]),
        for_course=[
            _saved(steps, rows),
            WORDS.table("captures", captured, f"way {times}"),
            ways.lanes(captured, ("computation", "gather", "scatter", "waiting")),
            _each_gather(captured),
        ],
    )


def _scaled(steps: pd.DataFrame, rows: pd.DataFrame, collectives: pd.DataFrame) -> pd.DataFrame:
    """Return how our FSDP scales, with the predicted communication and the part of it that is exposed."""
    ours = ways.fastest_by_ranks(steps, [OURS], [TORCHS], NAMES["none"])
    rates = ways.gathering_rates(collectives).set_index(["backend", "world_size"])["busbw_gb_per_s"]
    groups = zip(ours["backend"], ours["world_size"], strict=True)
    captured = rows[rows["way"] == OURS].groupby("case")["computation_ms"].max()
    ours = ours.assign(
        computation_ms=ours["case"].map(captured),
        bytes_per_s=[1e9 * rates.get(each, float("nan")) for each in groups],
    )
    ours["communication_ms"] = 1e3 * ours["sent_bytes"] / ours["bytes_per_s"]
    ours["exposed_by_formula_ms"] = [_exposed_ms(step) for _, step in ours.iterrows()]
    return ours


def _exposed_ms(step: pd.Series) -> float:
    """Predict the communication time of our step that no computation hides."""
    cell = Cell(**{item.name: step[item.name] for item in fields(Cell) if item.name != "repeat"})
    plan = prediction.plan("fsdp", cell, int(step["setting_vocab_size"]))
    assert plan is not None
    return 1e3 * plan.exposed_s(step["sent_bytes"], step["bytes_per_s"], step["computation_ms"] / 1e3)


def _each_gather(captured: pd.DataFrame) -> Chart:
    """Plot the time of each gather of a captured step, and the part of it in which nothing computes."""
    kinds = {"each_gather_ms": "gather", "each_gather_exposed_ms": "exposed"}
    gathers = (
        captured.dropna(subset=[*kinds])[["way", *kinds]].melt("way", var_name="kind", value_name="ms").explode("ms")
    )
    gathers = gathers.assign(number=gathers.groupby(["way", "kind"]).cumcount() + 1, kind=gathers["kind"].map(kinds))
    return WORDS.chart("gathers", gathers, "line", "number", "ms", "kind", panel="way")


def _saved(steps: pd.DataFrame, rows: pd.DataFrame) -> Table:
    """Compare the memory of each fully sharded way with that of sharding only the optimizer state."""
    sharded = steps[steps["way"].isin([OURS, TORCHS])]
    before_bytes = sharded["case"].map(steps[steps["way"] == DDP_SHARDED].set_index("case")["rank_bytes"])
    unsharded = rows[(rows["way"] == DDP_SHARDED) & rows["kind"].isin(["parameters", "gradients"])]
    whole_bytes = sharded["case"].map(unsharded.groupby("case")["measured_bytes"].sum())
    sharded = sharded.assign(
        state_alone_sharded_bytes=before_bytes,
        saved_by_formula_bytes=whole_bytes * (sharded["world_size"] - 1) / sharded["world_size"],
        saved_bytes=before_bytes - sharded["rank_bytes"],
        less_times=before_bytes / sharded["rank_bytes"],
    )
    names = "case state_alone_sharded_bytes saved_by_formula_bytes way rank_bytes saved_bytes less_times"
    return WORDS.table("saved", sharded, names, across="way")
