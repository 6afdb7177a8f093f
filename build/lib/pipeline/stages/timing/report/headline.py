"""The first screen's table, as text and as numbers, and what its figure shows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES
from pipeline.report.lever_words import listed
from pipeline.report.outcomes import IDLE_PCT
from pipeline.report.page_parts import Table
from pipeline.report.section import count, number, percent, ratio
from pipeline.report.table_rows import known, records
from pipeline.report.tables import with_outcomes
from pipeline.stages.timing.report.steps import bases, precision_gains

LIMITED_BY, TUNED = "limited by (GPU idle)", "tuned tokens/s (MFU, gain)"
# Named after a model with two feed-forward matrices a layer, where SwiGLU has three (pipeline.formulas.sizes).
NAMED_WITHOUT_SWIGLU = ("2.7B", "10B")
COLUMNS = [
    *("size", "precision", "context_length", "tokens_per_s", "model_tflops_per_s", "mfu_pct", "peak_bytes"),
    *("gpu_idle_pct", "limited_by", "power_capped", "median_ms", "q1_ms", "q3_ms", "status", "batch_size"),
]


def models(steps: pd.DataFrame, rows: pd.DataFrame, tuned: pd.DataFrame) -> list[dict[str, Any]]:
    """Return what each model reaches, by its row of `steps`, as summary.schema.json declares it; None for unknowns."""
    told = {
        "times_fp32": _over("fp32", steps, rows),
        "times_tf32": _over("tf32", steps, rows),
        "tuned_tokens_per_s": tuned["tokens_per_s"],
        "tuned_peak_bytes": tuned["peak_bytes"],
        "tuned_power_capped": tuned["power_capped"],
        "tuned_with": tuned["levers"],
    }
    return records(steps[COLUMNS].assign(**told))


def _over(base: str, steps: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Return how many times as fast as in a precision each step is; NaN where either time is missing or unstable."""
    gains = precision_gains(rows, steps["precision"].iloc[0], base)
    here = gains["is_stable"] & (gains["context_length"] == steps["context_length"].iloc[0])
    return steps["size"].map(gains[here].set_index("size")["ratio"])


def table(steps: pd.DataFrame, rows: pd.DataFrame, tuned: pd.DataFrame) -> Table:
    """Make the first screen's table of these steps, one row per model; tuned: what each reaches with levers."""
    rates = zip(steps["model_tflops_per_s"].map(number), steps["mfu_pct"], strict=True)
    over = {f"× {base}": _over(base, steps, rows) for base in bases(steps["precision"].iloc[0])}
    gained = [name for name, ratios in over.items() if ratios.notna().any()][:1]
    columns = {
        "model": [f"{row['size']} ({_shape(row)})" for _, row in steps.iterrows()],
        "tokens/s": with_outcomes(steps["tokens_per_s"].map(count), steps),
        "TFLOP/s (MFU)": [rate if pd.isna(mfu) else f"{rate} ({percent(mfu / 100)})" for rate, mfu in rates],
        **{name: over[name] for name in gained},
        LIMITED_BY: _limits(steps),
        "peak GB": steps["peak_bytes"] / 1e9,
        TUNED: _tuned_rates(tuned),
        "tuned peak GB": tuned["peak_bytes"] / 1e9,
    }
    forms = dict.fromkeys((*gained, "peak GB", "tuned peak GB"), number)
    filled = {name: pd.Series(list(column)) for name, column in columns.items()}
    shown = {name: column for name, column in filled.items() if column.notna().any()}
    cells = {name: column.map(forms.get(name, str), na_action="ignore").fillna("–") for name, column in shown.items()}
    return Table(_title(steps, rows, shown, list(tuned["levers"].dropna().unique())), pd.DataFrame(cells))


def _limits(steps: pd.DataFrame) -> list[str | None]:
    """Write what limits each step, and in brackets how long the GPU idles; None where that is not known."""
    pairs = zip(steps["limited_by"].replace("gpu", "GPU"), steps["gpu_idle_pct"], strict=True)
    return [None if pd.isna([limit, idle]).any() else f"{limit} ({percent(idle / 100)})" for limit, idle in pairs]


def _title(steps: pd.DataFrame, rows: pd.DataFrame, shown: Mapping[str, pd.Series], tuned_with: Sequence[str]) -> str:
    """Say what the first screen's table is of, and what its columns mean that do not say it themselves."""
    first, longest = steps.iloc[0], rows["context_length"].max()
    peak = known(steps, "peak_tflops_per_s", "peak_source")
    legend = {
        "× tf32": "times as fast as in fp32 with TF32, where both are stable",
        "× fp32": "times as fast as in fp32 without TF32, where both are stable",
        LIMITED_BY: f"the host if the GPU idles for {IDLE_PCT:g}% of the step or more",
    }
    legend = {name: words for name, words in legend.items() if name in shown}
    if TUNED in shown:
        legend["tuned"] = _tuned(shown[TUNED], tuned_with)
        if any("sdpa" in levers for levers in tuned_with):
            legend["SDPA"] = "PyTorch's scaled_dot_product_attention"
    if len(peak):
        of = "data sheet's" if peak["peak_source"].iloc[0] == "datasheet" else "fastest measured product's"
        share = f"share of the {of} {number(peak['peak_tflops_per_s'].max())} TFLOP/s"
        legend = {"MFU": f"{share}, masked attention scores counted too", **legend}
    precision = "bf16 autocast" if first["precision"] == "bf16" else first["precision"]
    longest = "" if first["context_length"] == longest else ", the longest that all of these fit"
    return (
        f"Whole training steps in {precision}, otherwise plain PyTorch (eager, plain attention, the default AdamW), "
        f"vocabulary {count(first['setting_vocab_size'])}, batch {first['batch_size']}, context "
        f"{first['context_length']}{longest}." + "".join(f" {name}: {words}." for name, words in legend.items())
    )


def _tuned_rates(tuned: pd.DataFrame) -> pd.Series:
    rates = tuned["tokens_per_s"].map(count, na_action="ignore").astype(object)
    shares = (tuned["mfu_pct"] / 100).map(percent, na_action="ignore")
    gains = tuned["gain"].map(ratio, na_action="ignore")
    pairs = zip(shares, gains, strict=True)
    inside = [", ".join(filter(pd.notna, pair)) for pair in pairs]
    return (rates + [f" ({words})" if words else "" for words in inside]).mask(tuned["is_wrong"], "wrong")


def _tuned(cells: Iterable[str], levers: Sequence[str]) -> str:
    words = (
        f"with {' or '.join(map(listed, levers)) or 'the best optimizations'}; gain: times as fast as the eager step "
        "of the same section"
    )
    return f"{words}; wrong: its loss is then too far from the eager one" if "wrong" in set(cells) else words


def _shape(row: pd.Series) -> str:
    size = SIZES[row["size"]]
    parameters = parameter_count(size, int(row["setting_vocab_size"]))
    words = f"{number(parameters / 1e9)}B" if parameters >= 1e9 else f"{number(parameters / 1e6)}M"
    swiglu = " with SwiGLU" if row["size"] in NAMED_WITHOUT_SWIGLU else ""
    return f"{words}{swiglu}, {size.num_layers} layers of width {count(size.d_model)}"


def finding(steps: pd.DataFrame, reached: Mapping[str, float]) -> str:
    """Say which rate of eager steps is the highest, and what a product alone reaches.

    reached: that of a matrix product alone, by precision.
    """
    most = steps.loc[steps["model_tflops_per_s"].idxmax()]
    product = reached.get(most["precision"])
    return (
        f"Eager steps reach {number(most['model_tflops_per_s'])} TFLOP/s at most ({most['size']}, {most['precision']})"
        + (f"; a matrix product alone reaches {number(product)}" if product else "")
        + "."
    )
