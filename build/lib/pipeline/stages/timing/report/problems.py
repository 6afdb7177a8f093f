"""What the times of training steps answer to the assignment's problems."""

import pandas as pd

from pipeline.report.outcomes import IDLE_PCT
from pipeline.report.page_parts import Problem
from pipeline.report.section import percent, ratio, span
from pipeline.report.side_by_side import step_words
from pipeline.stages.timing.report.steps import at, compiled_gains, first_steps, of_mode, precision_gains, warm


def problems(rows: pd.DataFrame, precision: str, context_length: int) -> list[Problem]:
    """Return the answers to the assignment's problems."""
    answers = {
        "benchmarking_script (b)": _phases(rows, precision, context_length),
        "benchmarking_script (c)": _warmup(first_steps(rows)),
        "benchmarking_mixed_precision (c)": _precision(precision_gains(rows, "bf16")),
        "torch_compile (b)": _compile(compiled_gains(rows), precision),
    }
    return [Problem(name, text) for name, text in answers.items() if text]


def _phases(rows: pd.DataFrame, precision: str, context_length: int) -> str:
    phases = [at(of_mode(warm(rows), "eager", name), precision, context_length) for name in ("forward", "backward")]
    size = phases[0]["size"].iloc[-1]
    forward, backward = (step_words(found.set_index("size").loc[size]) for found in phases)
    deviation = of_mode(warm(rows), "eager").eval("std_ms / mean_ms").median()
    return (
        f"{size} ({precision}, context {context_length}): forward {forward}, backward {backward}. The standard "
        f"deviation of a step is typically {percent(deviation)} of its mean."
    )


def _warmup(first: pd.DataFrame) -> str:
    names = first["size"] + " in " + first["precision"] + " at context " + first["context_length"].astype(str)
    ratios = first.set_index(names).groupby("warmup_steps")["first"]
    told = {steps: span(found, ratio) for steps, found in ratios}
    if 0 not in told:
        return ""
    after_one = f" After one warm-up step it takes {told[1]}." if 1 in told else ""
    return f"Without warm-up the first step takes {told[0]} the time of a later one.{after_one}"


def _precision(gained: pd.DataFrame) -> str:
    gained = gained[gained["is_stable"]]
    if gained.empty:
        return ""
    low, high = gained.loc[gained["ratio"].idxmin()], gained.loc[gained["ratio"].idxmax()]
    least = ""
    if low.name != high.name:
        least = f", and {low['size']} at {low['context_length']} {ratio(low['ratio'])}{_host(low)}"
    return (
        f"bf16 autocast trains {high['size']} at context {high['context_length']} {ratio(high['ratio'])} as fast as "
        f"fp32{least}."
    )


def _compile(gained: pd.DataFrame, precision: str) -> str:
    gained = gained[gained["precision"] == precision]
    marks = gained["is_stable"].map({True: "", False: " (unstable)"}) + gained.apply(_host, axis=1)
    contexts = gained["context_length"].unique()
    at = f", context {contexts[0]}" if len(contexts) == 1 else ""
    names = gained["size"] + ("" if at else " at context " + gained["context_length"].astype(str))
    parts = ", ".join(names + " " + gained["ratio"].map(ratio) + marks)
    if not parts:
        return ""
    busy = {side: gained[f"{side}_ms"] * (1 - gained[f"{side}_idle_pct"] / 100) for side in ("base", "other")}
    of_kernels = (busy["base"] / busy["other"]).dropna()
    kernels = ", ".join(names[of_kernels.index] + " " + of_kernels.map(ratio))
    alone = f" Of their kernels alone: {kernels}." if kernels else ""
    return f"The time of an eager step over that of a compiled one ({precision}{at}): {parts}.{alone}"


def _host(gained: pd.Series) -> str:
    """Mark a ratio of two times of which the host limits one or both."""
    return " (host-limited)" if gained[["base_idle_pct", "other_idle_pct"]].max() >= IDLE_PCT else ""
