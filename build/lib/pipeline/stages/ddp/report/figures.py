"""The figure of the ddp section."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from pipeline.report.figures import lengths_axis, new_figure, shared_legend, stamp, style_for
from pipeline.stages.ddp.report.facts import NO_COMMUNICATION, Run

BESIDE = 1.1  # on a log axis: error bars at one size stand beside each other


def bucket_sweep(runs: Sequence[Run]) -> Figure:
    """Draw what a step takes beyond one without communication over the bucket size, one panel per run."""
    figure, panels = new_figure(1, len(runs), panel_height_in=3.6)
    for axes, run in zip(panels[0], runs, strict=True):
        base_ms = run.steps.loc[NO_COMMUNICATION, "median_ms"]
        averaging = run.steps.drop(index=NO_COMMUNICATION)
        with_buckets = averaging[averaging["bucket_size_mb"].notna()]
        for place, (impl, line) in enumerate(with_buckets.groupby("impl", sort=False)):
            spread = [line["median_ms"] - line["q1_ms"], line["q3_ms"] - line["median_ms"]]
            beside = line["bucket_size_mb"].astype(float) * BESIDE**place
            axes.errorbar(beside, line["median_ms"] - base_ms, yerr=spread, label=impl, capsize=3, **style_for(impl))
        for _, line in averaging[averaging["bucket_size_mb"].isna()].iterrows():
            look = {name: value for name, value in style_for(line["impl"]).items() if name != "marker"}
            axes.axhline(line["median_ms"] - base_ms, label=line["impl"], **look)
        axes.set_title(run.label)
        if len(with_buckets):
            lengths_axis(axes, with_buckets["bucket_size_mb"].astype(int), "bucket size (MB)")
        axes.axhline(0, color="black", linewidth=0.8)
    panels[0, 0].set_ylabel("step beyond no communication (ms)")
    shared_legend(figure)
    stamp(figure, pd.concat([run.steps for run in runs]))
    return figure
