"""The figures of the ddp section."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pipeline.report.figures import lengths_axis, new_figure, shared_legend, stamp, style_for
from pipeline.stages.ddp.cell import CAPTURED
from pipeline.stages.ddp.report.facts import NO_COMMUNICATION, Run

LANES = ("computation", "communication")
LANE_HEIGHT = 0.8
BESIDE = 1.1  # on a log axis: error bars at one size stand beside each other
MOST_PARTS = 160  # of a step: a part a few pixels wide


def bucket_sweep(runs: Sequence[Run]) -> Figure | None:
    """Draw what a step takes beyond one without communication over the bucket size, a panel a run."""
    runs = [run for run in runs if len(run.beyond_ms)]
    if not runs:
        return None
    figure, panels = new_figure(1, len(runs), panel_height_in=3.6)
    for axes, run in zip(panels[0], runs, strict=True):
        base_ms = run.steps.loc[NO_COMMUNICATION, "median_ms"]
        averaging = run.steps.drop(index=NO_COMMUNICATION)
        with_buckets = averaging[averaging["bucket_size_mb"].notna()]
        for place, (impl, line) in enumerate(with_buckets.groupby("impl", sort=False)):
            spread = [line["median_ms"] - line["q1_ms"], line["q3_ms"] - line["median_ms"]]
            above_ms = line["median_ms"] - base_ms
            beside = line["bucket_size_mb"] * BESIDE**place
            axes.errorbar(beside, above_ms, yerr=spread, label=impl, capsize=3, **style_for(impl))
        for _, line in averaging[averaging["bucket_size_mb"].isna()].iterrows():
            above_ms = line["median_ms"] - base_ms
            look = {"color": style_for(line["impl"])["color"], "linestyle": style_for(line["impl"])["linestyle"]}
            axes.axhline(above_ms, label=line["impl"], **look)
        axes.set_title(run.label)
        if len(with_buckets):
            lengths_axis(axes, with_buckets["bucket_size_mb"].astype(int), "bucket size (MB)")
        axes.axhline(0, color="black", linewidth=0.8)
    panels[0, 0].set_ylabel("step beyond no communication (ms)")
    shared_legend(figure)
    stamp(figure, pd.concat([run.steps for run in runs]))
    return figure


def timeline(runs: Sequence[Run]) -> Figure | None:
    """Draw one captured step of the naive and of the overlapped variant, a lane of computation and one of transfers.

    The height of a lane is the share of each moment in which it ran.
    """
    captures = [(run, capture) for run in runs for _, capture in _drawable(run.captures).iterrows()]
    if not captures:
        return None
    figure, panels = new_figure(len(captures), 1, panel_height_in=1.5)
    for axes, (run, capture) in zip(panels[:, 0], captures, strict=True):
        for height, lane in enumerate(reversed(LANES)):
            edges, busy = _coarser(np.array(capture[f"{lane}_busy_pct"]) / 100)
            top, edges_ms = height + LANE_HEIGHT * busy, edges * capture["span_ms"]
            axes.stairs(top, edges_ms, baseline=height, fill=True, color=style_for(lane)["color"])
        axes.set_yticks(np.arange(len(LANES)) + LANE_HEIGHT / 2, reversed(LANES))
        axes.set_xlim(0, _drawable(run.captures)["span_ms"].max())
        axes.grid(axis="y", visible=False)
        axes.set_title(f"{run.name}: {capture.name}", loc="left")
    panels[-1, 0].set_xlabel("time in the step (ms)")
    drawn = pd.DataFrame([capture for _, capture in captures]).assign(n=1)
    stamp(figure, drawn, *drawn["clock"].unique(), shown="one step of rank 0")
    return figure


def _coarser(busy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of each of at most MOST_PARTS parts of a step, and their edges as shares of the step."""
    starts = np.arange(0, len(busy), -(-len(busy) // MOST_PARTS))
    edges = np.append(starts, len(busy))
    return edges / len(busy), np.add.reduceat(busy, starts) / np.diff(edges)


def _drawable(captures: pd.DataFrame) -> pd.DataFrame:
    captures = captures[captures.index.isin(CAPTURED)]
    return captures.dropna(subset=[f"{lane}_busy_pct" for lane in LANES])
