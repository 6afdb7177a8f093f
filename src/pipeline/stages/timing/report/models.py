"""The first screen's table as numbers: one entry a model, as summary.schema.json declares it."""

import json
from typing import Any

import pandas as pd

from pipeline.stages.timing.report.steps import at, of_kind, precision_gains, warm

COLUMNS = ["size", "tokens_per_s", "model_tflops_per_s", "mfu_pct", "peak_bytes", "gpu_idle_pct", "limited_by"]


def models(rows: pd.DataFrame, precision: str, context_length: int) -> list[dict[str, Any]]:
    """Return what eager training steps of each model reach at one precision and context; None where it is not known."""
    steps = at(of_kind(warm(rows), "eager"), precision, context_length)
    gains = precision_gains(rows, precision)
    over_fp32 = gains[gains["context_length"] == context_length].set_index("size")["ratio"]
    table = steps.reindex(columns=[*COLUMNS, "median_ms", "q1_ms", "q3_ms", "status"]).assign(
        precision=precision,
        context_length=context_length,
        batch_size=steps["setting_batch_size"],
        times_fp32=steps["size"].map(over_fp32),
    )
    return json.loads(table.to_json(orient="records", double_precision=9))
