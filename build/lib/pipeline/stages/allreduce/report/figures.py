"""The figure of the allreduce section."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from pipeline.report.figures import (
    BLACK,
    lengths_axis,
    new_figure,
    quartile_line,
    shared_legend,
    stamp,
    values_from_zero,
)
from pipeline.report.table_rows import with_rate_quartiles
from pipeline.stages.allreduce.report.facts import Group


def busbw(groups: Sequence[Group], link_gb_per_s: float | None) -> Figure:
    """Draw busbw in bursts over size and the link's rate: one panel per backend, one line per ranks and nodes."""
    backends = list(dict.fromkeys(group.backend for group in groups))
    figure, panels = new_figure(1, len(backends))
    for axes, backend in zip(panels[0], backends, strict=True):
        here = [group for group in groups if group.backend == backend]
        for group in here:
            bursts = with_rate_quartiles(group.bursts, "busbw_gb_per_s")
            quartile_line(axes, bursts, "size_mb", group.ranks, "busbw_gb_per_s")
        sizes = pd.concat([group.bursts["size_mb"] for group in here]).unique()
        if backend == "nccl" and link_gb_per_s is not None:
            axes.axhline(link_gb_per_s, linestyle="--", linewidth=1, color=BLACK, label="copy from GPU to GPU")
        axes.set_title(backend)
        lengths_axis(axes, [int(size) if size.is_integer() else size for size in sizes], "size (MB of 10⁶ bytes)")
        values_from_zero(axes)
        axes.set_ylabel("bus bandwidth (GB/s)")
    shared_legend(figure)
    stamp(figure, pd.concat([group.bursts for group in groups]), "torch, in place, bursts")
    return figure
