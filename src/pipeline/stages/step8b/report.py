"""The step8b section: how fast the whole step is, where its time goes, what each fusion buys, whether it is right."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report import versus, ways
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import written
from pipeline.report.frame import having, in_order, matching, with_values
from pipeline.report.section import Section
from pipeline.report.table import Table
from pipeline.report.words import Words
from pipeline.stages.step8b.cell import FUSIONS, IMPLS, OURS, WHOLE_STEP

WORDS = Words(__file__)
CELL = ["size", "context_length", "world_size", "impls"]
CASE = "{size}, bf16, {world_size} ranks, a sequence of {context_length:,} per rank"
NAMES = {
    "torch_eager": "torch's parts",
    "torch_compiled": "torch's parts, compiled",
    "torch_selective": "torch's parts, attention kept",
    "torch_compiled_selective": "torch's parts, compiled, attention kept",
    "ours": "ours",
    "ours_fully_shard": "ours under torch's FSDP",
    "bf16_eager": "plain model in bf16",
}
PEERS = [impl for impl in IMPLS if impl not in OURS]


def build(rows: pd.DataFrame, other_stages: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the step8b stage, for the cell with the most work per step."""
    rows = _largest(rows.assign(way=rows["impl"].map(NAMES), case=written(rows, CASE)))
    steps = matching(rows, WHOLE_STEP).sort_values("median_ms", kind="stable")
    steps = versus.against_base(steps, CELL, steps["impl"].isin(PEERS))
    ours = [NAMES[impl] for impl in OURS]
    return Section(
        ways.answer(steps, ours, "peak_bytes"),
        [_table(steps), _budget(rows, steps)],
        ways.changes(steps, WORDS.defined["change"], ours, "peak_bytes"),
        for_course=[_fusions(rows, steps), _checks(rows), _losses(rows)],
    )


def _largest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the cell with the most work per step, among those with values."""
    timed = with_values(matching(rows, WHOLE_STEP))
    work = timed["model_tflops_per_s"].fillna(0.0) * timed["median_ms"]
    return matching(rows, timed.loc[work.idxmax(), CELL].to_dict()) if len(timed) else rows


def _table(steps: pd.DataFrame) -> Table:
    base = next(iter(steps["base"].map(steps["way"]).dropna()), "torch")
    names = "way median_ms n gain verdict mfu_pct tokens_per_s gpu_idle_pct peak_bytes first_step_ms"
    return WORDS.table("steps", steps, names, only_filled=True, base=base, repeats=steps["repeats"].max())


def _budget(rows: pd.DataFrame, steps: pd.DataFrame) -> Chart:
    """Draw where a profiled step's time goes, the longest kind of work first."""
    items = having(rows[rows["measures"] == "budget"], "work_ms")
    longest = items.groupby("category")["work_ms"].sum().sort_values(ascending=False)
    items = in_order(items, ["way", "category"], {"way": list(steps["way"]), "category": list(longest.index)})
    return WORDS.chart("budget", items, "stack", "work_ms", "way", "category", hover="launches")


def _fusions(rows: pd.DataFrame, steps: pd.DataFrame) -> Table:
    """Tabulate the step with one more fusion per row; with so few steps, differences get no verdict."""
    found = in_order(having(rows[rows["measures"] == "fusion"], "step_ms"), ["fusion"], {"fusion": FUSIONS})
    timed = steps.loc[steps["impl"] == "ours", "n"].max()
    found = found.assign(
        one_more_a_row=found["fusion"].map(lambda name: WORDS.say(f"fusion_{name}")),
        steps_timed=found["setting_fusion_steps"].where(found["fusion"] != FUSIONS[-1], timed),
        less_than_the_row_above_ms=-found["step_ms"].diff(),
    )
    return WORDS.table("fusions", found, "one_more_a_row steps_timed step_ms less_than_the_row_above_ms peak_bytes")


def _checks(rows: pd.DataFrame) -> Table:
    """Tabulate how far loss and gradients of few layers are from the plain model's in fp32."""
    layers = rows["setting_checked_layers"].iloc[0]
    context = rows[["setting_checked_context", "context_length"]].min(axis=None)
    names = "way loss_error gradient_error worst_gradient_error"
    return WORDS.table("checks", having(rows, "loss_error"), names, layers=layers, context=context)


def _losses(rows: pd.DataFrame) -> Chart:
    long = having(rows, "losses").explode("losses").astype({"losses": float})
    long = long.assign(step=long.groupby("impl").cumcount() + 1)
    return WORDS.chart("losses", long, "line", "step", Axis("losses", zero=False), "way")
