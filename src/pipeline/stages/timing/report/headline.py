"""The first screen's table, as text and as numbers, and what its figure shows."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES
from pipeline.report.lever_words import listed
from pipeline.report.page_parts import Table
from pipeline.report.section import count, number, percent
from pipeline.report.table_rows import known
from pipeline.report.tables import with_outcomes
from pipeline.stages.timing.report.figures import TERA
from pipeline.stages.timing.report.steps import IDLE_PCT, precision_gains, step_flops

# Named after a model with two feed-forward matrices a layer, where SwiGLU has three (pipeline.formulas.sizes).
NAMED_WITHOUT_SWIGLU = ("2.7B", "10B")
COLUMNS = [
    *("size", "precision", "context_length", "tokens_per_s", "model_tflops_per_s", "mfu_pct", "peak_bytes"),
    *("gpu_idle_pct", "limited_by", "median_ms", "q1_ms", "q3_ms", "status"),
]


def models(steps: pd.DataFrame, rows: pd.DataFrame, tuned: pd.DataFrame) -> list[dict[str, Any]]:
    """Return what each model reaches, by its row of `steps`, as summary.schema.json declares it; None for unknowns."""
    told = {
        "batch_size": steps["batch_size"],
        "times_fp32": _over_fp32(steps, rows),
        "tuned_tokens_per_s": tuned["tokens_per_s"],
        "tuned_with": tuned["levers"],
    }
    return json.loads(steps.reindex(columns=COLUMNS).assign(**told).to_json(orient="records", double_precision=9))


def _over_fp32(steps: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Return how many times as fast as in fp32 each step is; NaN where either time is missing or unstable."""
    gains = precision_gains(rows, steps["precision"].iloc[0])
    here = gains["is_stable"] & (gains["context_length"] == steps["context_length"].iloc[0])
    return steps["size"].map(gains[here].set_index("size")["ratio"])


def table(steps: pd.DataFrame, rows: pd.DataFrame, tuned: pd.DataFrame) -> Table:
    """Make the first screen's table of these steps, one row per model; tuned: what each reaches with levers."""
    rates = zip(steps["model_tflops_per_s"].map(number), steps["mfu_pct"], strict=True)
    columns = {
        "model": [f"{row['size']} ({_shape(row)})" for _, row in steps.iterrows()],
        "tokens/s": with_outcomes(steps["tokens_per_s"].map(count), steps),
        "tuned": tuned["tokens_per_s"].map(count, na_action="ignore").mask(tuned["is_wrong"], "wrong"),
        "TFLOP/s (MFU)": [rate if pd.isna(mfu) else f"{rate} ({percent(mfu / 100)})" for rate, mfu in rates],
        "× fp32": _over_fp32(steps, rows) if steps["precision"].iloc[0] != "fp32" else None,
        "peak GB": steps["peak_bytes"] / 1e9 if "peak_bytes" in steps else None,
        "GPU idle": steps["gpu_idle_pct"] / 100 if "gpu_idle_pct" in steps else None,
        "limited by": steps["limited_by"].replace("gpu", "GPU") if "limited_by" in steps else None,
    }
    forms = {**dict.fromkeys(("× fp32", "peak GB"), number), "GPU idle": percent}
    filled = {name: pd.Series(list(column)) for name, column in columns.items() if column is not None}
    shown = {name: column for name, column in filled.items() if column.notna().any()}
    cells = {name: [written(value, forms.get(name, str)) for value in column] for name, column in shown.items()}
    return Table(_title(steps, rows, shown, list(tuned["levers"].dropna().unique())), pd.DataFrame(cells))


def written(value: Any, form: Callable[..., str] = number) -> str:
    """Write a value, and a dash where there is none."""
    return "–" if pd.isna(value) else form(value)


def _title(steps: pd.DataFrame, rows: pd.DataFrame, shown: Mapping[str, pd.Series], tuned_with: Sequence[str]) -> str:
    """Say what the first screen's table is of, and what its columns mean that do not say it themselves."""
    first, longest = steps.iloc[0], rows["context_length"].max()
    peak = known(steps, "peak_tflops_per_s", "peak_source")
    legend = {
        "tuned": _tuned(shown.get("tuned", []), tuned_with),
        "× fp32": "times as fast as in fp32 without TF32, where both times are stable",
        "GPU idle": "share of the step in which no kernel runs",
        "limited by": f"host where the GPU idles {IDLE_PCT:g}% or more",
    }
    legend = {name: words for name, words in legend.items() if name in shown}
    if len(peak):
        of = "data sheet's" if peak["peak_source"].iloc[0] == "datasheet" else "fastest measured product's"
        legend = {"MFU": f"share of the {of} {number(peak['peak_tflops_per_s'].max())} TFLOP/s", **legend}
    precision = "bf16 autocast" if first["precision"] == "bf16" else first["precision"]
    longest = "" if first["context_length"] == longest else ", the longest that all of these fit"
    return (
        f"Whole training steps in {precision}, otherwise plain PyTorch (eager, plain attention, the default AdamW), "
        f"batch {first['batch_size']}, context {first['context_length']}{longest}."
        + "".join(f" {name}: {words}." for name, words in legend.items())
    )


def _tuned(cells: Iterable[str], levers: Sequence[str]) -> str:
    words = f"tokens/s with {' or '.join(map(listed, levers)) or 'the best optimizations'}"
    return f"{words}; wrong: its loss is then too far from the eager one" if "wrong" in set(cells) else words


def _shape(row: pd.Series) -> str:
    parameters = parameter_count(SIZES[row["size"]], int(row["setting_vocab_size"]))
    words = f"{number(parameters / 1e9)}B" if parameters >= 1e9 else f"{number(parameters / 1e6)}M"
    swiglu = " with SwiGLU" if row["size"] in NAMED_WITHOUT_SWIGLU else ""
    return f"{words}{swiglu}, {SIZES[row['size']].num_layers} layers"


def finding(steps: pd.DataFrame, reached: Mapping[str, float]) -> str:
    """Say which rate of eager steps is the highest, what a product alone reaches, where the GPU waits for the host.

    reached: that of a matrix product alone, by precision.
    """
    most = steps.loc[steps["model_tflops_per_s"].idxmax()]
    product, idle = reached.get(most["precision"]), known(steps, "gpu_idle_pct")
    waits = [step_flops(row) for _, row in idle.iterrows() if row["gpu_idle_pct"] >= IDLE_PCT]
    return (
        f"Eager steps reach {number(most['model_tflops_per_s'])} TFLOP/s at most ({most['size']}, {most['precision']})"
        + (f"; a matrix product alone reaches {number(product)}" if product else "")
        + (f". The host limits some of the steps with up to {number(max(waits) / TERA)} TFLOP of work" if waits else "")
        + "."
    )
