"""The interactive chart of the memory section: peak memory against the time of a step."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from pipeline.report.charts import Chart, axis, colours, mark, picked, picker, quartiles, shapes
from pipeline.report.figures import MARKERS
from pipeline.report.tables import OUTCOME_WORDS
from pipeline.stages.memory.report.actions import flash_and_checkpoints
from pipeline.stages.memory.report.facts import Recording, beside_variants, of_main_size, recordings


def charts(rows: pd.DataFrame) -> list[Chart]:
    """Return the charts of the stage, from all its rows."""
    recorded = recordings(rows)
    if not any(one.measured for one in recorded):
        return []
    groups = [group for group in beside_variants(of_main_size(recorded)) if any(map(_timed, group))]
    case = flash_and_checkpoints([one for group in groups for one in group])
    return [_trade(groups, case.flash.setting if case else groups[-1][0].setting)] if groups else []


def _timed(one: Recording) -> bool:
    return one.measured and one.step is not None


def _trade(groups: Sequence[Sequence[Recording]], first: str) -> Chart:
    """Draw variants of a step by time and peak, first of one setting; the line joins those that none beats in both."""
    points = [point for group in groups for point in _points(group)]
    settings = [group[0].setting for group in groups]
    checkpoints = dict.fromkeys(point["checkpoints"] for point in points)
    markers = dict(zip(checkpoints, MARKERS, strict=False))
    x, y = (
        {**axis(field, title), "scale": {"zero": False, "padding": 24}}
        for field, title in (("median_ms", "training step (ms)"), ("peak_gb", "peak memory (GB)"))
    )
    told = quartiles(attention="attention", checkpoints="checkpoints", peak_gb="peak (GB)", phase="the peak is in")
    dots = {"filled": True, "size": 130, "opacity": 1}
    stepped = {"interpolate": "step-after", "strokeDash": [5, 4], "color": "#8A929C"}
    line = mark("line", stepped, x=x, y=y, order={"field": "median_ms"})
    colour = colours("attention", list(dict.fromkeys(point["attention"] for point in points)), "attention")
    shape = shapes("checkpoints", markers, "checkpoints")
    spec = {
        "params": [picker("setting", "model and workload", settings, first)],
        "transform": picked(setting="setting"),
        "height": 320,
        "layer": [
            {"transform": [{"filter": "datum.unbeaten"}], **line},
            mark("rule", x={**x, "field": "q1_ms"}, x2={"field": "q3_ms"}, y=y),
            mark("point", dots, x=x, y=y, color=colour, shape=shape, tooltip=told),
        ],
    }
    title = (
        "Peak memory against the time of a training step, by attention and checkpoints; the line is what no other beats"
    )
    return Chart("trade", title, spec, points, _not_drawn(groups))


def _points(group: Sequence[Recording]) -> list[dict[str, Any]]:
    least_bytes, points = float("inf"), []
    for one in sorted(filter(_timed, group), key=lambda one: (one.step_ms, one.peak.total_bytes)):
        assert one.step is not None
        unbeaten = one.peak.total_bytes < least_bytes
        least_bytes = min(least_bytes, one.peak.total_bytes)
        points.append(
            {
                "setting": one.setting,
                "attention": one.cell.attention,
                "checkpoints": one.variant.partition(", a checkpoint ")[2] or "none",
                "peak_gb": one.peak.total_bytes / 1e9,
                "phase": one.peak.phase,
                **{name: float(one.step[name]) for name in ("median_ms", "q1_ms", "q3_ms")},
                "unbeaten": unbeaten,
            }
        )
    return points


def _not_drawn(groups: Sequence[Sequence[Recording]]) -> str:
    """Name the variants that have no place in the chart, and why."""
    missing = [one for group in groups for one in group if not one.measured]
    words = "; ".join(f"{one.setting}, {one.variant}: {OUTCOME_WORDS[one.status]}" for one in missing)
    return f"Not drawn: {words}." if words else ""
