"""Rates that tables derive from a median time: tokens/s, model TFLOP/s, MFU, and the peak that MFU is a share of."""

from collections.abc import Mapping
from typing import Any

from pipeline.cells.rows import Reading
from pipeline.instruments.machine.peaks import datasheet_peak_tflops


def peak_columns(reading: Reading, dtype: str) -> dict[str, Any]:
    """Return the peak of the machine's GPU, by its data sheet or else as it was measured: rate and source.

    dtype: one of pipeline.instruments.machine.peaks.DATASHEET_DTYPES. Nothing where neither is known.
    """
    measured = reading.row.get("measured_peak_tflops_per_s")
    if measured is not None:
        return {"peak_tflops_per_s": measured, "peak_source": "measured"}
    promised = datasheet_peak_tflops(gpu_name(reading), dtype)
    return {} if promised is None else {"peak_tflops_per_s": promised, "peak_source": "datasheet"}


def gpu_name(reading: Reading) -> str:
    """Return the model of the machine's first GPU; empty where it has none."""
    gpus = reading.machine.get("gpus") or [{}]
    return gpus[0].get("name", "")


def step_rates(median_ms: float, step_flops: float, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return tokens/s, model TFLOP/s and, where the peak is known, MFU in percent.

    columns: `tokens` of a step, and `peak_columns`.
    """
    tflops_per_s = step_flops / median_ms / 1e9
    peak = columns.get("peak_tflops_per_s")
    return {
        "tokens_per_s": columns["tokens"] / median_ms * 1e3,
        "model_tflops_per_s": tflops_per_s,
        **({"mfu_pct": 100 * tflops_per_s / peak} if peak else {}),
    }
