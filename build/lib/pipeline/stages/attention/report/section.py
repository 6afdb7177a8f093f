"""The attention section: where plain attention runs out of memory, what it takes, and what compiling changes."""

import pandas as pd

from pipeline.formulas import attention
from pipeline.report.outcomes import not_measured, nothing_measured
from pipeline.report.page_parts import MOST_TABLE_ROWS, Figure, Problem, Section, Table
from pipeline.report.section import data_size, growth_exponent, ms, number, ratio
from pipeline.report.table_rows import known, ok
from pipeline.report.tables import times_by
from pipeline.stages.attention.report import figures
from pipeline.stages.attention.report.facts import (
    ELEMENT_BYTES,
    Limit,
    eager,
    host_times,
    limit,
    longest_in_both_modes,
    problems,
    usual,
    without_workspace,
)

TITLE = "Where does plain attention run out of memory?"
EXERCISE = "pytorch_attention, torch_compile (a)"
METHOD = (
    "softmax(q kᵀ / √head_dim) v with the whole score matrix in memory, in fp32. Host clock, from one synchronised"
    " moment to the next; eager and compiled take turns; medians. Memory is without the libraries' workspaces, as it is"
    " in the formula."
)


def build(rows: pd.DataFrame) -> Section:
    """Return the section of the attention stage, from all its rows."""
    rows = without_workspace(host_times(rows))
    if ok(eager(rows)).empty:
        return Section(TITLE, EXERCISE, nothing_measured(rows))
    shown = usual(rows)
    end, both = limit(eager(shown)), longest_in_both_modes(shown)
    return Section(
        TITLE,
        EXERCISE,
        f"{_where_it_ends(end)} {_cost(shown)}",
        parts=[_memory_figure(shown, end), _agreement(rows, shown), _times(shown), not_measured(rows, "mode")],
        method=METHOD,
        problems=[_attention_problem(shown, end), *_compile_problem(both)],
    )


def _where_it_ends(end: Limit) -> str:
    done = f"{end.longest_done} fitted" if end.longest_done else "no backward phase was measured"
    seen = f"{end.shortest_oom} ran out" if end.shortest_oom else "and nothing tried ran out"
    return (
        f"Eager forward and backward (batch {end.shape.batch_size}, one head of {end.shape.head_dim}, fp32) fit into "
        f"the {data_size(end.memory_bytes)} that can be allocated up to length {end.longest_by_formula} by formula; "
        f"{done}, {seen}."
    )


def _cost(rows: pd.DataFrame) -> str:
    """Say what the longest eager problem takes."""
    done = ok(eager(rows))
    longest = done[done["seq_len"] == done["seq_len"].max()]
    times = " and ".join(f"{ms(row['median_ms'])} {row['phase']}" for _, row in longest.iterrows())
    peaks = [f", and {data_size(peak)} at the peak" for peak in known(longest, "peak_bytes").get("peak_bytes", [])[:1]]
    return f"At length {longest['seq_len'].iloc[0]} it takes {times}{''.join(peaks)}."


def _memory_figure(rows: pd.DataFrame, end: Limit) -> Figure:
    title = (
        f"Eager attention's peak passes the {data_size(end.memory_bytes)} that can be allocated at length "
        f"{end.longest_by_formula}, for it grows with the square of the length"
    )
    return Figure("memory", title, figures.memory(rows, end))


def _agreement(rows: pd.DataFrame, shown: pd.DataFrame) -> str:
    """Say whether the formula has every head_dim right, and how far the counted peak is from it."""
    ends = [limit(group) for _, group in eager(rows).groupby("head_dim") if len(known(group, "memory_bytes"))]
    wrong = ", ".join(str(end.shape.head_dim) for end in ends if not end.agrees)
    sentences = []
    if wrong:
        sentences.append(f"The formula is wrong about what fits at head_dim {wrong}.")
    elif any(end.shortest_oom for end in ends):
        sentences.append("What fitted and what ran out of memory agrees with the formula.")
    for _, row in known(problems(shown, "eager"), "peak_bytes").tail(1).iterrows():
        over = ratio(row["peak_bytes"] / row["model_peak_bytes"])
        sentences.append(f"At length {row['seq_len']} the peak is {over} the formula's.")
    return " ".join(sentences)


def _times(rows: pd.DataFrame) -> Table:
    """Write medians of both phases and modes, and memory, over length at one head_dim."""
    cells = times_by(rows, "seq_len", rows["mode"] + " " + rows["phase"])
    for title, mode, name in (
        ("before backward", "eager", "before_backward_bytes"),
        ("peak", "eager", "peak_bytes"),
        ("peak, compiled", "compiled", "peak_bytes"),
    ):
        counted = known(problems(rows, mode), name).set_index("seq_len")
        if len(counted):
            cells[title] = counted[name].map(data_size)
    memory = ", and memory in use" if len(known(rows, "peak_bytes")) else ""
    cells = cells.fillna("").tail(MOST_TABLE_ROWS).reset_index()
    title = f"head_dim {rows['head_dim'].iloc[0]}, medians in ms{memory}:"
    return Table(title, cells.rename(columns={"seq_len": "length"}))


def _peaks(longest: pd.DataFrame) -> str:
    peaks = known(longest, "peak_bytes")
    if len(peaks) < len(longest):
        return ""
    before, after = (data_size(peaks.loc[(mode, "forward"), "peak_bytes"]) for mode in ("eager", "compiled"))
    return f", and the peak is {after} instead of {before}"


def _attention_problem(rows: pd.DataFrame, end: Limit) -> Problem:
    problem, growth = end.first_too_long, ""
    saved = known(problems(rows, "eager"), "saved_bytes").nlargest(2, "seq_len")
    if len(saved) > 1:
        exponent = number(growth_exponent(saved["seq_len"], saved["saved_bytes"]))
        growth = f"What is saved for backward grows as length to the power {exponent}; "
    answer = (
        f"At batch {problem.batch_size}, head_dim {problem.head_dim} and length {problem.seq_len}"
        f"{', which ran out,' if end.shortest_oom else ''} the peak is "
        f"{data_size(attention.peak_bytes(problem, ELEMENT_BYTES, end.device_type))}, of which each score matrix is "
        f"{data_size(problem.scores * ELEMENT_BYTES)}. {growth}FlashAttention keeps the log-sum-exp of each query "
        f"in place of the scores, {data_size(attention.flash_saved_bytes(problem))}."
    )
    return Problem("pytorch_attention", answer)


def _compile_problem(longest: pd.DataFrame) -> list[Problem]:
    if longest.empty:
        return []
    times, row = longest["median_ms"].map(ms), longest.iloc[0]
    words = [
        f"{times['compiled', phase]} {phase} instead of {times['eager', phase]}" for phase in ("forward", "backward")
    ]
    answer = (
        f"Compiled, attention at length {row['seq_len']} and head_dim {row['head_dim']} takes {' and '.join(words)}"
        f"{_peaks(longest)}."
    )
    return [Problem("torch_compile (a)", answer)]
