"""The tensor_parallel section: ways to divide a block or a step over ranks, each beside the time of its formula."""

from collections.abc import Mapping

import pandas as pd

from pipeline.instruments.profilers.budget import ORDER
from pipeline.instruments.profilers.kernel_categories import IDLE
from pipeline.report import ways
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import gb, interval, ms, number, text, times
from pipeline.report.frame import in_order, with_figures
from pipeline.report.section import Section, say
from pipeline.report.table import Table, filled

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
    rows = rows.assign(
        way=rows["impl"].map(NAMES),
        case=[CASE.format(**row, named=WHATS[row["what"]]) for row in rows.to_dict("records")],
    )
    steps = ways.whole_steps(rows, list(NAMES.values()), ONE)
    cases = ways.by_trust(steps)
    if not cases:
        return Section("No way to divide a step has a time.")
    steps = pd.concat(cases)
    steps = steps.assign(of=[f"{row['precision']}, {row['world_size']} ranks" for _, row in steps.iterrows()])
    blocks = steps[steps["what"] == "block"]
    is_longest = blocks["context_length"] == blocks["context_length"].max()
    several = blocks["context_length"].nunique() > 1
    return Section(
        _answer(cases[0]),
        [
            _table("blocks", "One block, forward and backward", blocks[~is_longest] if several else blocks),
            _table("steps", "A whole training step", steps[steps["what"] == "step"]),
            _by_kind(rows, steps),
        ],
        for_course=[_table("long", "One block at the longest context", blocks[is_longest & several])],
    )


def _answer(steps: pd.DataFrame) -> str:
    """Say what the fastest way takes, beside its formula and one process."""
    timed = with_figures(steps)
    one, divided = timed[timed["way"] == ONE], timed[timed["way"] != ONE]
    case = timed["case"].iloc[0]
    if one.empty or divided.empty:
        return say("{case}: of {ways} alone there are figures.", case=case, ways=", ".join(timed["way"]))
    best = divided.loc[divided["median_ms"].idxmin()]
    return say(
        "{case}: {way} takes {time}, {over} the {predicted} of its formula, and one process {alone}: {gain} as fast "
        "({verdict}).",
        case=case,
        way=best["way"],
        time=ms(best["median_ms"]),
        over=times(best["over_prediction"]),
        predicted=ms(best["in_turn_ms"]),
        alone=ms(one["median_ms"].iloc[0]),
        gain=interval(best),
        verdict=best["verdict"],
    )


def _table(name: str, what: str, steps: pd.DataFrame) -> Table:
    """Write each way's time and bytes beside those of its formula."""
    columns = [
        ("", "of", text),
        ("way", "way", text),
        ("ms", "median_ms", number),
        ("by formula (ms)", "in_turn_ms", number),
        ("measured over it", "over_prediction", times),
        ("by formula, overlapped (ms)", "overlapped_ms", number),
        ("exposed (ms)", "exposed_communication_ms", number),
        ("sent GB", "sent_bytes", gb),
        ("by formula GB", "predicted_bytes", gb),
        ("peak GB", "peak_bytes", gb),
    ]
    told = [what]
    if len(steps):
        told += ["{size}, batch {batch_size}, context {context_length:,}".format(**steps.iloc[0])]
        told += [f"repeats: {steps['repeats'].max():.0f}"]
    return Table(name, f"{'; '.join(told)}:", steps, filled(steps, columns))


def _by_kind(rows: pd.DataFrame, steps: pd.DataFrame) -> Chart:
    """Draw what a profiled step's time goes into, and under each way what its formula counts."""
    measured = rows[(rows["measures"] == "budget") & rows["work_ms"].notna()]
    known = steps[steps["case"].isin(measured["case"]) & steps["way"].isin(measured["way"])]
    counted = [
        known.assign(way=known["way"] + ", " + BY_FORMULA, category=category, work_ms=known[column])
        for category, column in (("matmul", "compute_ms"), ("communication", "communication_ms"))
    ]
    order = [each for name in NAMES.values() for each in (name, f"{name}, {BY_FORMULA}")]
    drawn = in_order(
        pd.concat([measured, *counted]),
        ["case", "way", "category"],
        {"case": list(dict.fromkeys(steps["case"])), "way": order, "category": [*ORDER, IDLE]},
    )
    title = "Where the time of one profiled step goes, and what the formula counts"
    return Chart("by_kind", title, drawn, "stack", Axis("work_ms", "ms"), Axis("way"), "category", panel="case")
