"""The figure of the step8b section: what each fusion saves of a step, from torch's parts to ours."""

import pandas as pd
from matplotlib.figure import Figure

from pipeline.report.figures import BLUE, GREEN, GREY, VERMILION, new_figure, stamp
from pipeline.report.tables import significant
from pipeline.stages.step8b.report.facts import NAMES, Run

LINE_IN = 0.36
FUSION_NAMES = {
    "none": "our blocks and FSDP, attention kept",
    "attention": "our attention",
    "rms_norm": "RMSNorm fused",
    "rotary": "rotary positions fused",
    "swiglu": "SwiGLU fused",
    "loss": "head and loss fused",
    "kept_products": "more kept for the backward pass",
}


def ladder(run: Run) -> pd.Series:
    """Return the median steps from torch's parts, where they were timed, through each fusion, by name, in ms."""
    steps = run.of("fusion").set_index("fusion")["step_ms"].reindex(FUSION_NAMES).dropna().rename(FUSION_NAMES)
    if run.peer is None:
        return steps
    return pd.concat([pd.Series({NAMES[run.peer]: run.steps.loc[run.peer, "median_ms"]}), steps])


def waterfall(run: Run) -> Figure:
    """Draw the step of torch's parts, what each fusion takes off or adds, and the step that is left."""
    steps = ladder(run) / 1e3
    names = [*steps.index, NAMES["ours"]]
    figure, panels = new_figure(panel_height_in=1 + LINE_IN * len(names))
    axes = panels[0, 0]
    axes.barh(names[0], steps.iloc[0], color=GREY)
    for name, before, after in zip(names[1:], steps.iloc[:-1], steps.iloc[1:], strict=False):
        axes.barh(name, after - before, left=before, color=GREEN if after < before else VERMILION)
        axes.annotate(
            f"{'−' if after < before else '+'}{significant(1e3 * abs(after - before))} ms",
            (max(before, after), name),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
        )
    axes.barh(names[-1], steps.iloc[-1], color=BLUE)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 1.12 * steps.max())
    axes.set_xlabel("training step (s), one fusion more a line")
    timed = run.steps.loc[[run.ours]] if run.ours else run.steps
    stamp(figure, timed, run.model, shown="medians")
    return figure
