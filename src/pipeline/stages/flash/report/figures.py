"""The figures of the flash section."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.report.figures import (
    BLACK,
    lengths_axis,
    log_values_axis,
    mark_outcomes,
    new_figure,
    quartile_line,
    save,
    shared_legend,
    stamp,
    style_for,
)
from pipeline.report.heatmap import ratio_map
from pipeline.report.table_rows import ok
from pipeline.stages.flash.cell import PHASES
from pipeline.stages.flash.report.selection import main_grid, main_head_dim, named, of, ours, rival, speedups

LENGTH_LABEL = "sequence length"


def draw_all(rows: pd.DataFrame, folder: Path) -> dict[str, dict[str, str]]:
    """Draw every figure for which there is data; give the links by dtype and figure name."""
    links: dict[str, dict[str, str]] = {}
    for dtype in ok(main_grid(rows))["dtype"].unique():
        here = main_grid(rows)[main_grid(rows)["dtype"] == dtype]
        for name, draw in DRAWN.items():
            figure = draw(here)
            if figure is not None:
                save(figure, folder / f"{name}_{dtype}.svg")
                links.setdefault(dtype, {})[name] = f"figures/flash/{name}_{dtype}.svg"
    return links


def times(rows: pd.DataFrame) -> Figure:
    """Draw times over length at one head_dim: a panel a pass, a line an implementation; OOM is marked."""
    grid = rows[rows["head_dim"] == main_head_dim(rows)]
    shown = grid[grid["impl"].isin(ok(grid)["impl"])]
    figure, panels = new_figure(1, len(PHASES), panel_height_in=4.2, share_y=True)
    for axes, part in zip(panels[0], PHASES, strict=True):
        for impl, line in shown[shown["phase"] == part].groupby("impl", sort=False):
            quartile_line(axes, line, "seq_len", impl)
        axes.set_title(part.replace("_", " + "))
        _few_lengths(axes, shown)
    log_values_axis(panels[0, 0], "time (ms)")
    for axes, part in zip(panels[0], PHASES, strict=True):
        out = shown[(shown["phase"] == part) & (shown["status"] == "oom")]
        mark_outcomes(axes, out, "seq_len", "impl")
    shared_legend(figure, per_row=4)
    stamp(figure, shown, *_facts(grid), named(main_head_dim(rows)))
    return figure


def throughput(rows: pd.DataFrame) -> Figure:
    """Draw TFLOP/s of forward + backward over length, a panel a head_dim, with the ceiling."""
    both = ok(rows).query("`phase` == 'forward_backward'")
    head_dims = sorted(both["head_dim"].unique())
    lines = -(-len(head_dims) // 2)
    figure, panels = new_figure(lines, min(2, len(head_dims)), panel_height_in=3.0, share_y=True)
    for axes, head_dim in zip(panels.flat, head_dims, strict=False):
        for impl, line in both[both["head_dim"] == head_dim].sort_values("seq_len").groupby("impl", sort=False):
            axes.plot(line["seq_len"], line["tflops_per_s"], label=impl, **style_for(impl))
        axes.axhline(both["peak_tflops_per_s"].max(), color=BLACK, linewidth=1, linestyle="--", label=_ceiling(both))
        axes.set_title(named(head_dim))
        _few_lengths(axes, both)
    for axes in panels[:, 0]:
        axes.set_ylabel("TFLOP/s")
        axes.set_ylim(bottom=0)
    for axes in panels.flat[len(head_dims) :]:
        axes.set_visible(False)
    shared_legend(figure, per_row=4)
    stamp(figure, both, *_facts(both), "forward + backward", shown="from medians")
    return figure


def _ceiling(rows: pd.DataFrame) -> str:
    row = rows.iloc[0]
    return f"peak, {row['peak_of']} ({row['peak_source']})"


def speedup_map(rows: pd.DataFrame) -> Figure | None:
    """Map the time of the best peer, and of SDPA's flash kernel or its stand-in, over ours; None without peers."""
    if ours(rows) is None or rival(rows) is None:
        return None
    parts = ("forward", "forward_backward")
    opponents = ("best", rival(rows))
    figure, panels = new_figure(len(opponents), len(parts), panel_height_in=2.4)
    for line, against in zip(panels, opponents, strict=True):
        ratios = speedups(rows, ours(rows), against)
        for axes, part in zip(line, parts, strict=True):
            here = ratios[ratios["phase"] == part]
            ratio_map(axes, here, "seq_len", "head_dim", "head_dim")
            words = "best peer" if against == "best" else against
            title = "forward" if part == "forward" else "both passes"
            axes.set_title(f"{title}: {words} / {ours(rows)}")
    for axes in panels[-1]:
        axes.set_xlabel(LENGTH_LABEL)
    stamp(figure, ok(of(rows, ours(rows))), *_facts(rows), shown="ratio of medians; above one ours is faster")
    return figure


def memory(rows: pd.DataFrame) -> Figure | None:
    """Draw the memory that forward + backward adds to its inputs over length; None where it was not counted."""
    if "extra_bytes" not in rows:
        return None
    grid = rows[(rows["head_dim"] == main_head_dim(rows)) & (rows["phase"] == "forward_backward")]
    known = grid[grid["extra_bytes"].notna()]
    if known.empty:
        return None
    figure, panels = new_figure()
    axes = panels[0, 0]
    for impl, line in known.sort_values("seq_len").groupby("impl", sort=False):
        axes.plot(line["seq_len"], line["extra_bytes"] / 1e6, label=impl, **style_for(impl))
    _few_lengths(axes, grid)
    log_values_axis(axes, "beside the inputs (MB)")
    mark_outcomes(axes, grid[grid["status"] == "oom"], "seq_len", "impl")
    shared_legend(figure, per_row=4)
    stamp(figure, known.assign(n=1), *_facts(grid), named(main_head_dim(rows)), shown="most memory during one pass")
    return figure


DRAWN: dict[str, Callable[[pd.DataFrame], Figure | None]] = {
    "times": times,
    "throughput": throughput,
    "speedup": speedup_map,
    "memory": memory,
}


def _few_lengths(axes: Axes, rows: pd.DataFrame) -> None:
    """Put lengths on the x axis; where there are many, a label at every other one."""
    lengths = sorted(rows["seq_len"].unique())
    lengths_axis(axes, lengths, LENGTH_LABEL)
    if len(lengths) > 5:
        axes.set_xticks(lengths[::2], [str(length) for length in lengths[::2]])
    axes.tick_params(axis="x", labelrotation=35)


def _facts(rows: pd.DataFrame) -> list[str]:
    return [*rows["dtype"].unique(), "batch 1, one head, causal"]
