"""The interactive charts of the profile section: a step's time by kind of kernel, and what the GPU idles."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from pipeline.formulas.size_order import by_size
from pipeline.instruments.profilers.kernel_categories import CATEGORIES
from pipeline.report.charts import IDLE_COLOUR, Chart, axis, bars_axis, coloured, mark, picked, picker, tooltip
from pipeline.report.figures import style_for
from pipeline.stages.profile.cell import PASSES
from pipeline.stages.profile.report.facts import PASS_WORDS, Capture, captures, lead, main_captures, shown_pass
from pipeline.stages.profile.report.layer_chart import layer_charts

IDLE = "GPU idle"


def charts(rows: pd.DataFrame) -> list[Chart]:
    """Return the charts of the stage, from all its rows."""
    captured = captures(rows)
    return [_categories(captured), *layer_charts(rows)] if captured else []


def _categories(captured: Sequence[Capture]) -> Chart:
    """Stack the kernel time of a pass by category, and the rest of its wall time, one bar per model."""
    shown = main_captures(captured)
    lines = [line for one in captured for path in PASSES if path in one.work_ms.index for line in _lines(one, path)]
    names = [name for name in CATEGORIES if name in {line["category"] for line in lines}]
    first = lead(shown)
    settings, passes = (list(dict.fromkeys(line[name] for line in lines)) for name in ("setting", "what"))
    told = tooltip(
        size="model",
        category="kind of work",
        time_ms="time (ms)",
        share_pct="share of the kernel time (%)",
        wall_ms="wall time, no profiler (ms)",
        captured_by="captured by",
    )
    spec = {
        "params": [
            picker("what", "pass", passes, PASS_WORDS[shown_pass(shown)]),
            picker("setting", "precision and context", settings, _setting(first)),
        ],
        "transform": picked(what="what", setting="setting"),
        "height": {"step": 30},
        **mark(
            "bar",
            y=bars_axis("size", by_size({line["size"] for line in lines})),
            x=axis("time_ms", "time of one pass (ms)", stack="zero"),
            color=coloured("category", {name: style_for(name)["color"] for name in names} | {IDLE: IDLE_COLOUR}),
            order={"field": "place"},
            tooltip=told,
        ),
    }
    title = "Time of one pass by kind of work, and what the GPU idles of its wall time"
    return Chart("categories", title, spec, lines)


def _setting(one: Capture) -> str:
    by = "" if one.cell.profiler == "auto" else f", {one.cell.profiler}"
    return f"{one.cell.precision}, context {one.cell.context_length}{by}"


def _lines(one: Capture, path: str) -> list[dict[str, Any]]:
    """Return the bars' parts; idle is the wall time without a profiler less the time in which a kernel ran."""
    wall_ms, busy_ms = (float(one.times_ms.loc[path, clock]) for clock in ("host", "busy"))
    shares = one.shares(path)
    parts = {name: float(one.work_ms.loc[path, name]) for name in CATEGORIES if shares.get(name)}
    if one.on_gpu and wall_ms > busy_ms:
        parts[IDLE] = wall_ms - busy_ms
    told = {
        "size": one.cell.size,
        "setting": _setting(one),
        "what": PASS_WORDS[path],
        "captured_by": one.captured_by,
        "wall_ms": None if math.isnan(wall_ms) else wall_ms,
    }
    return [
        {
            **told,
            "category": name,
            "place": place,
            "time_ms": time_ms,
            "share_pct": 100 * float(shares[name]) if name in shares else None,
        }
        for place, (name, time_ms) in enumerate(parts.items())
    ]
