"""The tensor_parallel section: ways to divide a block or a step over ranks, each beside the time of its formula."""

from collections.abc import Mapping

import pandas as pd

from pipeline.instruments.profilers.budget import ORDER
from pipeline.instruments.profilers.kernel_categories import IDLE
from pipeline.report import ways
from pipeline.report.chart import Chart
from pipeline.report.formats import written
from pipeline.report.frame import in_order, with_values, without_skipped
from pipeline.report.section import Section
from pipeline.report.table import Table
from pipeline.report.words import Words

WORDS = Words(__file__)
ONE, BY_FORMULA = "one process", "by formula"
NAMES = {
    "none": ONE,
    "tensor": "tensor parallel",
    "sequence": "tensor + sequence parallel",
    "fsdp": "FSDP",
    "fsdp_tensor": "FSDP × tensor parallel",
    "context": "context parallel, FSDP",
}
WHATS = {"block": "One block", "step": "A training step"}
CASE = "{named} of {size}, {precision}, {world_size} ranks, {batch_size} × {context_length:,} tokens"


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the tensor_parallel stage."""
    rows = rows.assign(way=rows["impl"].map(NAMES), named=rows["what"].map(WHATS))
    rows = rows.assign(case=written(rows, CASE), of=written(rows, "{precision}, {world_size} ranks"))
    steps = ways.whole_steps(rows, list(NAMES.values()), ONE)
    cases = ways.by_trust(steps)
    if not cases:
        return Section(WORDS.say("no_time"))
    steps = pd.concat(cases)
    blocks = steps[steps["what"] == "block"]
    contexts = blocks["context_length"]
    is_long = (contexts == contexts.max()) & (contexts.nunique() > 1)
    return Section(
        _answer(cases[0]),
        [_table("blocks", blocks[~is_long]), _by_kind(rows, steps)],
        for_course=[_table("long", blocks[is_long]), _table("steps", steps[steps["what"] == "step"])],
    )


def _answer(steps: pd.DataFrame) -> str:
    timed = with_values(steps)
    one, divided = timed[timed["way"] == ONE], timed[timed["way"] != ONE]
    if one.empty or divided.empty:
        return ways.only(steps)
    best = divided.loc[divided["median_ms"].idxmin()]
    return WORDS.say("answer", best=best, alone_ms=one["median_ms"].iloc[0])


def _table(name: str, steps: pd.DataFrame) -> Table:
    steps = without_skipped(steps, "way")
    names = "of way median_ms in_turn_ms over_prediction:times overlapped_ms exposed_communication_ms sent_bytes:gb"
    names = f"{names} predicted_bytes:gb peak_bytes:gb"
    return WORDS.table(name, steps, names, all_rows=False, only_filled=True, repeats=steps["repeats"].max())


def _by_kind(rows: pd.DataFrame, steps: pd.DataFrame) -> Chart:
    """Draw what a profiled step's time goes into, and under each way what its formula counts."""
    measured = rows[(rows["measures"] == "budget") & rows["work_ms"].notna()]
    known = steps[steps["case"].isin(measured["case"]) & steps["way"].isin(measured["way"])]
    counted = [
        known.assign(way=known["way"] + ", " + BY_FORMULA, category=category, work_ms=known[column])
        for category, column in (("matmul", "compute_ms"), ("communication", "communication_ms"))
    ]
    ordered = [each for name in NAMES.values() for each in (name, f"{name}, {BY_FORMULA}")]
    orders = {"case": steps["case"].unique(), "way": ordered, "category": [*ORDER, IDLE]}
    drawn = in_order(pd.concat([measured, *counted]), [*orders], orders)
    return WORDS.chart("by_kind", drawn, "stack", "work_ms", "way", "category", panel="case")
