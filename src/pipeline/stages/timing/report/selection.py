"""Which rows of the timing tables answer which question."""

import pandas as pd

from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES
from pipeline.report.table_rows import divide, in_order, ok, spread

# Tables come sorted by file name; people read sizes smallest first, by the parameters of their layers, and
# precisions widest first.
BY_SIZE = tuple(sorted(SIZES, key=lambda name: parameter_count(SIZES[name], vocab_size=0)))
PRECISIONS = ("fp32", "tf32", "bf16")
MODES = ("eager", "compiled")
PHASES = ("forward", "backward", "optimizer")
PASSES = (*PHASES, "train_step", "compile")
ORDERS = {"precision": PRECISIONS, "size": BY_SIZE, "mode": MODES, "phase": PASSES}

READING_ORDER = ["precision", "size", "context_length", "warmup_steps", "mode", "phase"]

# The context length at which most others report, so the one to show first.
PREFERRED_CONTEXT = 256

# As many steps as the assignment asks to measure; the stop rule may have taken more.
FIRST_STEPS = 10


def ordered(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Sort by these columns, names in reading order."""
    return in_order(rows, keys, ORDERS)


def eager_and_compiled(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the steps with PyTorch's default optimizer that are launched kernel by kernel."""
    return rows[rows["mode"].isin(MODES) & (rows["optimizer"] == "foreach")]


def host(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep what the host clock measured."""
    return rows[rows["clock"] == "host"]


def main_grid(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the eager steps measured after the longest warm-up."""
    return rows[(rows["mode"] == "eager") & (rows["warmup_steps"] == rows["warmup_steps"].max())]


def at_context(rows: pd.DataFrame, context_length: int) -> pd.DataFrame:
    """Keep one context length."""
    return rows[rows["context_length"] == context_length]


def main_context(rows: pd.DataFrame) -> int:
    """Choose the context length to show first: 256, else the largest that the most sizes have figures for."""
    sizes = ok(rows).groupby("context_length")["size"].nunique()
    if PREFERRED_CONTEXT in sizes.index:
        return PREFERRED_CONTEXT
    return int(sizes[sizes == sizes.max()].index.max())


def first_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Give the first measured steps of a process by the count of its warm-up steps, for one setting.

    That is the first precision, and in it the main context length, for which a start without warm-up was
    measured. A step is the sum of its phases by the host clock: they are what a process measures first,
    whole steps come when it is warm.

    Returns precision, context_length, size, warmup_steps, machine, torch, step (from 1), step_ms,
    relative: step_ms over the median after the longest warm-up, and unstable: whether a phase is in that
    median which is. Empty where there is nothing to compare.
    """
    phases = ok(host(rows))
    phases = phases[(phases["mode"] == "eager") & phases["phase"].isin(PHASES)]
    cold = phases[phases["warmup_steps"] == 0]
    if cold.empty:
        return pd.DataFrame()
    setting = cold[cold["precision"] == cold["precision"].iloc[0]]
    context_length = main_context(setting)
    sizes = at_context(setting, context_length)["size"]
    shown = at_context(phases[phases["precision"] == setting["precision"].iloc[0]], context_length)
    shown = shown[shown["size"].isin(sizes)]
    steps = _steps(shown)
    longest = steps["warmup_steps"].max()
    unstable_sizes = shown.loc[(shown["warmup_steps"] == longest) & (shown["status"] == "unstable"), "size"]
    warm_median_ms = steps[steps["warmup_steps"] == longest].groupby("size")["step_ms"].median()
    steps = steps[steps["step"] <= FIRST_STEPS]
    steps = steps.assign(
        relative=steps["step_ms"] / steps["size"].map(warm_median_ms),
        unstable=steps["size"].isin(unstable_sizes),
    )
    return steps[steps["relative"].notna()] if longest > 0 else pd.DataFrame()


def _steps(phases: pd.DataFrame) -> pd.DataFrame:
    """Add up the phases of each step: a row a step."""
    keys = ["precision", "context_length", "size", "warmup_steps", "machine", "torch"]
    samples = phases.assign(step_ms=phases["samples_ms"]).explode("step_ms")
    samples["step"] = samples.groupby([*keys, "phase"]).cumcount() + 1
    samples["step_ms"] = samples["step_ms"].astype(float)
    return samples.groupby([*keys, "step"], sort=False)["step_ms"].sum().reset_index()


def ratios(numerator: pd.DataFrame, denominator: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Divide the times of rows that agree in the keys, as pipeline.report.table_rows does; in reading order."""
    return ordered(divide(numerator, denominator, keys), keys)


def by_pass(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Spread a column: a row a size, in order of appearance, and a column a pass."""
    return spread(rows, ["size"], "phase", column)


def unstable_by_pass(rows: pd.DataFrame) -> pd.DataFrame:
    """Flag what is unstable, spread as `by_pass` does."""
    return by_pass(rows, "status") == "unstable"
