"""The step8b section: how fast the whole step is, where its time goes, what each fusion buys, whether it is right."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import count, data_size, gb, interval, ms, number, percent, text
from pipeline.report.frame import in_order, with_figures
from pipeline.report.section import Change, Section, say
from pipeline.report.table import Table, filled
from pipeline.report.versus import COLUMNS, FASTER, versus
from pipeline.stages.step8b import report_right as right
from pipeline.stages.step8b.cell import FUSIONS, WHOLE_STEP

CELL = ["size", "context_length", "world_size", "impls"]
NAMES = {
    "torch_eager": "torch's parts",
    "torch_compiled": "torch's parts, compiled",
    "torch_selective": "torch's parts, attention kept",
    "ours": "ours",
    "ours_fully_shard": "ours under torch's FSDP",
    "bf16_eager": "plain model in bf16",
}
PEERS, OURS = ("torch_eager", "torch_compiled", "torch_selective"), ("ours", "ours_fully_shard")
FUSION_WORDS = {
    "none": "our blocks and FSDP, torch's operations",
    "attention": "our attention",
    "rms_norm": "RMSNorm fused",
    "rotary": "rotary positions fused",
    "swiglu": "SwiGLU fused",
    "loss": "head and loss fused",
    "kept_products": "more kept for the backward pass",
}


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the step8b stage, of the cell with the most work a step."""
    rows = rows.assign(name=rows["impl"].map(NAMES))
    own = _largest(rows)
    steps = _steps(own)
    return Section(
        _answer(steps),
        [_table(steps), _budget(own)],
        _changes(steps),
        for_course=[
            _budget_table(own),
            _fusions(own, steps),
            right.checks(own),
            right.losses(own),
        ],
    )


def _largest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the cell whose steps do most, of those with figures."""
    timed = with_figures(rows[(rows[list(WHOLE_STEP)] == pd.Series(WHOLE_STEP)).all(axis=1)])
    if timed.empty:
        return rows
    work = timed["model_tflops_per_s"].fillna(0.0) * timed["median_ms"]
    at = timed.loc[work.idxmax()]
    return rows[(rows[CELL] == at[CELL]).all(axis=1)]


def _steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the whole steps, each beside the fastest of torch's parts: `base`, COLUMNS and `gain`."""
    steps = rows[(rows[list(WHOLE_STEP)] == pd.Series(WHOLE_STEP)).all(axis=1)]
    peers = with_figures(steps[steps["impl"].isin(PEERS)])
    base = peers.nsmallest(1, "median_ms")["impl"].to_list()
    others = [impl for impl in steps["impl"] if impl not in base]
    judged = versus(steps, CELL, "impl", others, base).set_index("impl")[list(COLUMNS)]
    steps = steps.join(judged, on="impl").assign(base="".join(NAMES[impl] for impl in base))
    gains = [interval(row) if pd.notna(row["ratio"]) else None for _, row in steps.iterrows()]
    return steps.assign(gain=gains).sort_values("median_ms", kind="stable")


def _case(row: pd.Series) -> str:
    return f"{row['size']}, bf16, {row['world_size']} ranks, a sequence of {row['context_length']:,} a rank"


def _answer(steps: pd.DataFrame) -> str:
    step = with_figures(steps).set_index("impl")
    ours = step[step.index.isin(OURS)]
    if ours.empty or ours["ratio"].isna().all():
        return say(
            "{case}: of {names} alone there are figures.", case=_case(steps.iloc[0]), names=", ".join(step["name"])
        )
    best = ours.loc[ours["median_ms"].idxmin()]
    base = step[step["name"] == best["base"]].iloc[0]
    return say(
        "{case}: a step takes {after} with our fused model and {before} with {base}: {gain} as fast ({verdict}).",
        case=_case(best),
        after=ms(best["median_ms"]),
        before=ms(base["median_ms"]),
        base=base["name"],
        gain=best["gain"],
        verdict=best["verdict"],
    )


def _table(steps: pd.DataFrame) -> Table:
    first = steps.iloc[0]
    columns = [
        ("implementation", "name", text),
        ("ms", "median_ms", number),
        ("steps timed", "n", count),
        (f"times as fast as {first['base'] or 'torch'} (interval)", "gain", text),
        ("verdict", "verdict", text),
        ("MFU without masked scores", "mfu_pct", percent),
        ("tokens/s", "tokens_per_s", count),
        ("GPU idle", "gpu_idle_pct", percent),
        ("peak GB", "peak_bytes", gb),
        ("first step (ms)", "first_step_ms", number),
    ]
    return Table("steps", f"{_case(first)}; repeats: {steps['repeats'].max():.0f}:", steps, filled(steps, columns))


def _budgets(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[(rows["measures"] == "budget") & rows["work_ms"].notna()]


def _budget(rows: pd.DataFrame) -> Chart:
    """Draw where a profiled step's time goes, the longest kind of work first."""
    items = _budgets(rows)
    longest = items.groupby("category")["work_ms"].sum().sort_values(ascending=False)
    items = in_order(items, ["name", "category"], {"name": list(NAMES.values()), "category": list(longest.index)})
    axes = Axis("work_ms", "ms of one profiled step"), Axis("name")
    hover = {"launches": "launches"}
    return Chart("budget", "Where the time of one profiled step goes", items, "stack", *axes, "category", hover=hover)


def _budget_table(rows: pd.DataFrame) -> Table:
    items = _budgets(rows)
    wide = items.pivot_table(index="category", columns="name", values="work_ms", sort=False, aggfunc="sum")
    wide = wide.reindex(columns=[name for name in NAMES.values() if name in wide]).fillna(0.0)
    wide = wide.loc[wide.sum(axis=1).sort_values(ascending=False).index].reset_index()
    columns = [("kind of work", "category", text), *((f"{name} (ms)", name, number) for name in wide.columns[1:])]
    caption = "One profiled step on the first rank, by kind of work; where two kinds run at once, the time counts once:"
    return Table("budget_by_kind", caption, wide, columns)


def _fusions(rows: pd.DataFrame, steps: pd.DataFrame) -> Table:
    """Write the step with one fusion more a row: few steps each, so that a difference has no verdict."""
    found = rows[(rows["measures"] == "fusion") & rows["step_ms"].notna()]
    found = in_order(found, ["fusion"], {"fusion": FUSIONS})
    is_last = found["fusion"] == FUSIONS[-1]
    timed = steps.loc[steps["impl"] == "ours", "n"].max()
    found = found.assign(
        what=found["fusion"].map(FUSION_WORDS),
        steps_timed=found["setting_fusion_steps"].where(~is_last, timed),
        saved_ms=-found["step_ms"].diff(),
    )
    columns = [
        ("one more a row", "what", text),
        ("steps timed", "steps_timed", count),
        ("step (ms)", "step_ms", number),
        ("less than the row above (ms)", "saved_ms", number),
        ("peak GB", "peak_bytes", gb),
    ]
    return Table("fusions", "The fused model, one fusion more a row:", found, columns)


def _changes(steps: pd.DataFrame) -> list[Change]:
    """Return the faster of our models as a change from torch's parts, where it is faster."""
    found = steps[steps["impl"].isin(OURS) & (steps["verdict"] == FASTER)].nsmallest(1, "median_ms")
    before = steps[steps["name"] == steps["base"]]
    return [
        Change(
            "our fused model and FSDP, free memory in place of checkpoints",
            _case(row),
            _cost(before.iloc[0]),
            _cost(row),
            row.to_dict(),
        )
        for _, row in found.iterrows()
    ]


def _cost(step: pd.Series) -> str:
    return ms(step["median_ms"]) + (f", {data_size(step['peak_bytes'])}" if pd.notna(step["peak_bytes"]) else "")
