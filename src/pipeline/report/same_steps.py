"""Training steps that several sections time, each in a process of its own: how far apart their times lie."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from pipeline.report.outcomes import IDLE_PCT
from pipeline.report.section import ms, ratio
from pipeline.report.table_rows import known, records
from pipeline.report.written_section import WrittenSection

STEP = ["size", "precision", "batch_size", "context_length", "vocab_size"]


def eager_steps(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return STEP, median_ms and gpu_busy_ms, None where unknown, of a section's eager training steps that are stable.

    rows: those of whole steps with plain attention and the default AdamW; batch_size and vocab_size may be settings.
    """
    stable = rows[rows["status"] == "ok"]
    settings = {name: stable[f"setting_{name}"] for name in ("batch_size", "vocab_size") if name not in stable}
    told = stable.assign(**settings).reindex(columns=[*STEP, "median_ms", "gpu_busy_ms"]).drop_duplicates(STEP)
    return records(told)


def how_far_apart(sections: Iterable[WrittenSection]) -> str:
    """Say which step differs most between sections.

    The host limits a step where the GPU idles IDLE_PCT or more of the longest of its times. Empty where no two sections
    time the same step.
    """
    steps = pd.DataFrame([{"stage": section.stage, **step} for section in sections for step in section.eager_steps])
    same = [_compared(times) for _, times in steps.groupby(STEP) if len(times) > 1] if len(steps) else []
    if not same:
        return ""
    every = pd.DataFrame(same)
    most = every.loc[every["ratio"].idxmax()]
    limit = ", which the host limits" if most["idle_pct"] >= IDLE_PCT else ""
    return f"Its stable times lie furthest apart for {most['step']}{limit}: {most['times']}."


def _compared(times: pd.DataFrame) -> dict[str, Any]:
    """Compare one step's times, one row per section."""
    first, last = times.loc[times["median_ms"].idxmin()], times.loc[times["median_ms"].idxmax()]
    apart = last["median_ms"] / first["median_ms"]
    busy = known(times, "gpu_busy_ms")["gpu_busy_ms"].astype(float).max()
    return {
        "step": f"{first['size']} in {first['precision']} at context {first['context_length']}",
        "times": f"{ms(first['median_ms'])} in {first['stage']}, {ms(last['median_ms'])} in {last['stage']} "
        f"({ratio(apart)})",
        "ratio": apart,
        "idle_pct": 100 * (1 - busy / last["median_ms"]),
    }
