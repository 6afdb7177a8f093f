"""Which rows of the timing stage answer which question: whole steps, and ratios between two of them."""

from collections.abc import Mapping

import pandas as pd

from pipeline.formulas.flops import train_step_flops
from pipeline.formulas.size_order import BY_SIZE
from pipeline.formulas.sizes import SIZES
from pipeline.report.outcomes import clear_gain
from pipeline.report.table_rows import highest, in_order, ok

PRECISIONS = ("fp32", "tf32", "bf16")
ORDERS = {"precision": PRECISIONS, "size": BY_SIZE}
CELL = ["precision", "size", "context_length"]


def every_batch(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep what the host clock measured after the longest warm-up, in reading order."""
    kept = rows[(rows["clock"] == "host") & (rows["warmup_steps"] == rows["warmup_steps"].max())]
    return in_order(kept, [*CELL, "batch_size"], ORDERS)


def usual_batch(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the batch of most rows."""
    return rows[rows["batch_size"] == rows["batch_size"].mode().min()]


def warm(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep of `every_batch` the usual one."""
    return usual_batch(every_batch(rows))


def of_mode(rows: pd.DataFrame, mode: str, phase: str = "train_step") -> pd.DataFrame:
    """Keep one phase of the steps of one mode that have figures."""
    return ok(rows[(rows["mode"] == mode) & (rows["phase"] == phase)])


def main_precision(rows: pd.DataFrame) -> str:
    """Choose the precision in which people train: bf16 where it was measured, else the first that was."""
    measured = set(of_mode(warm(rows), "eager")["precision"])
    return "bf16" if "bf16" in measured else next(name for name in PRECISIONS if name in measured)


def largest_context(rows: pd.DataFrame, precision: str) -> int:
    """Choose the longest context of those with figures for the most sizes."""
    steps = of_mode(warm(rows), "eager")
    sizes = steps[steps["precision"] == precision].groupby("context_length")["size"].nunique()
    return int(sizes[sizes == sizes.max()].index.max())


def first_screen_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the eager steps of the first screen's table: those in which people train, at the largest context.

    Some eager step has to have figures.
    """
    precision = main_precision(rows)
    return at(of_mode(warm(rows), "eager"), precision, largest_context(rows, precision))


def at(steps: pd.DataFrame, precision: str, context_length: int) -> pd.DataFrame:
    """Keep the steps of one precision and context length."""
    return steps[(steps["precision"] == precision) & (steps["context_length"] == context_length)]


def step_flops(row: pd.Series) -> int:
    """Return the FLOPs of a step by the model's mathematics."""
    return train_step_flops(
        SIZES[row["size"]], int(row["setting_vocab_size"]), int(row["batch_size"]), int(row["context_length"])
    )


def compiled_gains(rows: pd.DataFrame) -> pd.DataFrame:
    """Divide the time of an eager step by that of the compiled one, of the same precision, size and context.

    Returns CELL, ratio (above 1 the other is faster), is_stable (whether both are), is_clear (whether it is worth
    acting on), and of each side median_ms, gpu_idle_pct and peak_tflops_per_s as base_ms, base_idle_pct,
    base_tflops_per_s, and so on with other_.
    """
    steps = warm(rows)
    return _ratios(of_mode(steps, "eager"), of_mode(steps, "compiled"), CELL)


def bases(precision: str) -> list[str]:
    """Return the precisions to compare one with: those of more bits, the nearest first."""
    return list(reversed(PRECISIONS[: PRECISIONS.index(precision)]))


def precision_gains(rows: pd.DataFrame, precision: str, base: str = "fp32") -> pd.DataFrame:
    """Divide the eager step time of one precision, `base`, by that of another; see `compiled_gains`."""
    steps = of_mode(warm(rows), "eager")
    slower, faster = (steps[steps["precision"] == name] for name in (base, precision))
    return _ratios(slower, faster, ["size", "context_length"])


def _ratios(base: pd.DataFrame, other: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    both = base.merge(other, on=keys, suffixes=("_base", "_other"), validate="one_to_one")[keys]
    sides = [rows.set_index(keys).loc[map(tuple, both.to_numpy())] for rows in (base, other)]
    pairs = list(zip(*([row for _, row in side.iterrows()] for side in sides), strict=True))
    for name, side in zip(("base", "other"), sides, strict=True):
        told = side[["median_ms", "gpu_idle_pct", "peak_tflops_per_s"]].to_numpy(dtype=float)
        both[[f"{name}_ms", f"{name}_idle_pct", f"{name}_tflops_per_s"]] = told
    is_stable = [before["status"] == after["status"] == "ok" for before, after in pairs]
    is_clear = [clear_gain(before, after) is not None for before, after in pairs]
    return both.assign(ratio=both["base_ms"] / both["other_ms"], is_stable=is_stable, is_clear=is_clear)


def reached_tflops_per_s(steps: pd.DataFrame, beside: Mapping[str, pd.DataFrame] | None) -> dict[str, float]:
    """Return the highest rate of a matrix product alone by its data type, from the rows of the stage ceilings.

    Without those for which the peak of `steps` is not a data sheet's: it is the rate of such a product already.
    """
    reached = highest((beside or {}).get("ceilings", pd.DataFrame()), "tflops_per_s", by="dtype")
    measured = set(steps.loc[steps["peak_source"] == "measured", "precision"])
    return {dtype: rate for dtype, rate in reached.items() if dtype not in measured}


def compile_times(rows: pd.DataFrame) -> pd.DataFrame:
    """Return CELL, compile_ms (of the first step), and payback_steps: after how many steps it pays, if ever."""
    first = of_mode(warm(rows), "compiled", phase="compile")[[*CELL, "median_ms"]]
    both = first.rename(columns={"median_ms": "compile_ms"}).merge(compiled_gains(rows), on=CELL)
    saved = both["base_ms"] - both["other_ms"]
    return both.assign(payback_steps=(both["compile_ms"] / saved).where(saved > 0))


def first_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Give the sum of the phases of each process's first step, over the median of its later ones, by warm-up.

    Returns CELL, warmup_steps and first (a ratio); of eager steps.
    """
    phases = ok(usual_batch(rows[(rows["clock"] == "host") & (rows["mode"] == "eager")]))
    phases = phases[phases["phase"].isin(["forward", "backward", "optimizer"])]
    keys = [*CELL, "warmup_steps"]
    steps = phases[[*keys, "phase", "samples_ms"]].explode("samples_ms").astype({"samples_ms": float})
    steps["step"] = steps.groupby([*keys, "phase"]).cumcount()
    sums = steps.groupby([*keys, "step"], sort=False)["samples_ms"].sum().reset_index()
    later = sums[sums["step"] > 0].groupby(keys)["samples_ms"].median()
    first = sums[sums["step"] == 0].set_index(keys)["samples_ms"]
    return (first / later).rename("first").dropna().reset_index()
