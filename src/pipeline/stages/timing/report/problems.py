"""What the times of training steps answer to the assignment's problems."""

import pandas as pd

from pipeline.report.page_parts import Problem, say
from pipeline.report.section import ms, percent, ratio
from pipeline.stages.timing.report.steps import at, first_steps, gains, of_kind, precision_gains, warm


def problems(rows: pd.DataFrame, precision: str, context_length: int) -> list[Problem]:
    """Return the answers to the assignment's problems."""
    return [
        _phases_problem(rows, precision, context_length),
        *_warmup_problem(rows),
        *_precision_problem(rows),
        *_compile_problem(rows, precision),
    ]


def _phases_problem(rows: pd.DataFrame, precision: str, context_length: int) -> Problem:
    phases = [at(of_kind(warm(rows), "eager", name), precision, context_length) for name in ("forward", "backward")]
    size = phases[0]["size"].iloc[-1]
    forward, backward = (table.set_index("size").loc[size] for table in phases)
    deviation = of_kind(warm(rows), "eager").eval("std_ms / mean_ms").median()
    answer = say(
        "{size} ({precision}, context {length}): forward {forward}, backward {backward}. The standard deviation of a"
        " step is typically {deviation} of its mean.",
        size=size,
        precision=precision,
        length=context_length,
        forward=ms(forward["median_ms"]),
        backward=ms(backward["median_ms"]),
        deviation=percent(deviation),
    )
    return Problem("benchmarking_script (b)", answer)


def _warmup_problem(rows: pd.DataFrame) -> list[Problem]:
    table = first_steps(rows)
    cold, after_one = (table[table["warmup_steps"] == steps]["first"] for steps in (0, 1))
    if cold.empty:
        return []
    then = say(" After one warm-up step it takes {ratio}.", ratio=ratio(after_one.median())) if len(after_one) else ""
    answer = say(
        "Without warm-up the first step takes {ratio} the time of a later one (median over models; at most {most})."
        "{then}",
        ratio=ratio(cold.median()),
        most=ratio(cold.max()),
        then=then,
    )
    return [Problem("benchmarking_script (c)", answer)]


def _precision_problem(rows: pd.DataFrame) -> list[Problem]:
    table = precision_gains(rows, "bf16")
    if table.empty:
        return []
    low, high = table.loc[table["ratio"].idxmin()], table.loc[table["ratio"].idxmax()]
    answer = say(
        "bf16 autocast trains {best} at context {length} {high} as fast as fp32, and {worst} at {short} {low}.",
        best=high["size"],
        length=int(high["context_length"]),
        high=ratio(high["ratio"]),
        worst=low["size"],
        short=int(low["context_length"]),
        low=ratio(low["ratio"]),
    )
    return [Problem("benchmarking_mixed_precision (c)", answer)]


def _compile_problem(rows: pd.DataFrame, precision: str) -> list[Problem]:
    table = gains(rows, "eager", "compiled")
    table = table[table["precision"] == precision]
    if table.empty:
        return []
    parts = [f"{row['size']} {ratio(row['ratio'])}" for _, row in table.iterrows()]
    answer = say(
        "The time of an eager step over that of a compiled one ({precision}): {parts}.",
        precision=precision,
        parts=", ".join(parts),
    )
    return [Problem("torch_compile (b)", answer)]
