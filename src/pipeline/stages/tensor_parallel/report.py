"""The tensor_parallel section: ways to divide a block or a step over ranks, each compared with its formula."""

from collections.abc import Mapping, Sequence

import pandas as pd

from pipeline.cells.timed_rows import slowed_by_profiler
from pipeline.instruments.profilers.kernel_categories import CATEGORIES, IDLE
from pipeline.report import ways
from pipeline.report.chart import Chart
from pipeline.report.formats import written
from pipeline.report.frame import in_order, with_values, without_skipped
from pipeline.report.markup import Markdown
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
WHAT_NAMES = {"block": "One block", "step": "A training step"}
CASE = "{named} of {size}, {precision}, {world_size} ranks, {batch_size} × {context_length:,} tokens"


def build(rows: pd.DataFrame, other_stages: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the tensor_parallel stage."""
    rows = rows.assign(way=rows["impl"].map(NAMES), named=rows["what"].map(WHAT_NAMES))
    rows = rows.assign(case=written(rows, CASE), of=written(rows, "{precision}, {world_size} ranks"))
    steps = ways.whole_steps(rows, list(NAMES.values()), ONE)
    cases = ways.by_trust(steps)
    if not cases:
        return Section(WORDS.say("no_time"))
    steps = pd.concat(cases)
    blocks = steps[steps["what"] == "block"]
    contexts = blocks["context_length"]
    is_long = (contexts == contexts.max()) & (contexts.nunique() > 1)
    parts = {"blocks": blocks[~is_long], "long": blocks[is_long], "steps": steps[steps["what"] == "step"]}
    # The first has the case of the answer.
    names = sorted(parts, key=lambda name: cases[0].index[0] not in parts[name].index)
    first, *others = [_table(name, parts[name]) for name in names]
    return Section(_answers(cases), [first, *others[1:], _by_kind(rows, steps)], for_course=others[:1])


def _answers(cases: Sequence[pd.DataFrame]) -> str:
    """Answer for the first case of a block and for that of a whole step, whose shares are smaller."""
    firsts: dict[str, pd.DataFrame] = {}
    for steps in cases:
        firsts.setdefault(steps["what"].iloc[0], steps)
    return Markdown(" ").join(map(_answer, firsts.values()))


def _answer(steps: pd.DataFrame) -> str:
    timed = with_values(steps)
    one, divided = timed[timed["way"] == ONE], timed[timed["way"] != ONE]
    if one.empty or divided.empty:
        return ways.say_which_have_results(steps)
    best = divided.loc[divided["median_ms"].idxmin()]
    return WORDS.say("answer", best=best, alone_ms=one["median_ms"].iloc[0])


def _table(name: str, steps: pd.DataFrame) -> Table:
    # The rates behind a prediction are stable even where the step is not.
    steps = without_skipped(steps, "way").assign(status_by_formula="ok")
    steps = steps.rename(columns={"in_turn_ms": "in_turn_ms_by_formula"})
    times = "median_ms in_turn_ms_by_formula over_prediction:times exposed_communication_ms gpu_idle_pct"
    names = f"of way {times} sent_bytes:gb predicted_bytes:gb peak_bytes:gb"
    return WORDS.table(name, steps, names, all_rows=False, only_filled=True, repeats=steps["repeats"].max())


def _by_kind(rows: pd.DataFrame, steps: pd.DataFrame) -> Chart:
    """Draw where a profiled step's time goes, unless profiling slowed it down; below it what its formula counts."""
    held_up = steps[slowed_by_profiler(steps["profiled_ms"], steps["median_ms"])]
    measured = rows[(rows["measures"] == "budget") & rows["work_ms"].notna()]
    measured = measured[~(measured["case"] + measured["way"]).isin(held_up["case"] + held_up["way"])]
    known = steps[(steps["case"] + steps["way"]).isin(measured["case"] + measured["way"])]
    counted = [
        known.assign(way=known["way"] + ", " + BY_FORMULA, category=category, work_ms=known[column], status="ok")
        for category, column in (("matmul", "compute_ms"), ("communication", "communication_ms"))
    ]
    ordered = [each for name in NAMES.values() for each in (name, f"{name}, {BY_FORMULA}")]
    orders = {"case": steps["case"].unique(), "way": ordered, "category": [*CATEGORIES, IDLE]}
    drawn = in_order(pd.concat([measured, *counted]), [*orders], orders)
    return WORDS.chart("by_kind", drawn, "stack", "work_ms", "way", "category", panel="case")
