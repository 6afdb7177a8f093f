"""The attention section: where plain attention runs out of memory, what it takes, and what compiling changes."""

import pandas as pd

from pipeline.formulas import attention
from pipeline.report.markup import Markdown
from pipeline.report.outcomes import clear_gain, not_measured, nothing_measured
from pipeline.report.page_parts import Action, Figure, Problem, Section, Table, say
from pipeline.report.section import count, data_size, growth_exponent, ms, number, ratio
from pipeline.report.table_rows import known, ok
from pipeline.report.tables import significant, with_outcomes
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
MOST_ROWS = 12
METHOD = Markdown(
    "softmax(q kᵀ / √head_dim) v with the whole score matrix in memory, in fp32. Host clock, from one synchronised"
    " moment to the next; eager and compiled take turns; medians. The formula leaves out libraries' workspaces."
)


def build(rows: pd.DataFrame) -> Section:
    """Return the section of the attention stage, from all its rows."""
    rows = host_times(rows)
    if ok(eager(rows)).empty:
        return Section(TITLE, EXERCISE, nothing_measured(rows))
    shown = usual(rows)
    end = limit(shown)
    compiled = longest_in_both_modes(shown)
    return Section(
        TITLE,
        EXERCISE,
        Markdown(" ").join([*_where_it_ends(end), _cost(shown)]),
        parts=[
            *_memory_figure(shown, end),
            *_agreement(rows, shown),
            _times(shown),
            not_measured(rows, "mode"),
        ],
        method=METHOD,
        actions=[*_use_flash(end), *_compile(compiled)],
        problems=[*_attention_problem(shown, end), *_compile_problem(compiled)],
    )


def _where_it_ends(end: Limit | None) -> list[Markdown]:
    if end is None:
        return []
    return [
        say(
            "Eager forward and backward (batch {batch}, one head of {head_dim}, fp32) fit into this machine's {memory}"
            " up to length {longest} by formula; {seen}.",
            batch=end.shape.batch_size,
            head_dim=end.shape.head_dim,
            memory=data_size(end.memory_bytes),
            longest=count(end.longest_by_formula),
            seen=_seen(end),
        )
    ]


def _seen(end: Limit) -> str:
    done = f"{end.longest_done} fitted" if end.longest_done else "no backward phase was measured"
    return f"{done}, {end.shortest_oom} ran out" if end.shortest_oom else f"{done}, and nothing tried ran out"


def _cost(rows: pd.DataFrame) -> Markdown:
    """Say what the longest eager problem takes."""
    done = ok(eager(rows))
    longest = done[done["seq_len"] == done["seq_len"].max()]
    times = [f"{ms(row['median_ms'])} {row['phase']}" for _, row in longest.iterrows()]
    peak = known(longest, "peak_bytes")
    return say(
        "At length {length} it takes {times}{memory}.",
        length=longest["seq_len"].iloc[0],
        times=" and ".join(times),
        memory=f", and {data_size(peak['peak_bytes'].iloc[0])} at the peak" if len(peak) else "",
    )


def _memory_figure(rows: pd.DataFrame, end: Limit | None) -> list[Figure]:
    if end is None:
        return []
    title = say(
        "Eager attention's peak passes this machine's {memory} at length {longest}, for it grows with the square of the"
        " length",
        memory=data_size(end.memory_bytes),
        longest=count(end.longest_by_formula),
    )
    return [Figure("memory", title, figures.memory(rows, end))]


def _agreement(rows: pd.DataFrame, shown: pd.DataFrame) -> list[Markdown]:
    """Say whether the formula has every head_dim right, and how far the counted peak is from it."""
    ends = [end for _, group in rows.groupby("head_dim") if (end := limit(group))]
    if not ends:
        return []
    wrong = [str(end.shape.head_dim) for end in ends if not end.agrees]
    sentences = []
    if wrong:
        sentences.append(say("The formula is wrong about what fits at head_dim {wrong}.", wrong=", ".join(wrong)))
    elif any(end.shortest_oom for end in ends):
        sentences.append(Markdown("What fitted and what ran out agrees with the formula at every head_dim."))
    counted = known(without_workspace(problems(shown, "eager")), "peak_bytes")
    if len(counted):
        row = counted.loc[counted["seq_len"].idxmax()]
        sentences.append(
            say(
                "At length {length} the peak counted without workspaces is {ratio} the formula's.",
                length=row["seq_len"],
                ratio=ratio(row["peak_bytes"] / row["model_peak_bytes"]),
            )
        )
    return [Markdown(" ").join(sentences)] if sentences else []


def _times(rows: pd.DataFrame) -> Table:
    """Write medians of both phases and modes, and memory, over length at one head_dim."""
    times = with_outcomes(rows["median_ms"].map(significant), rows.assign(reason=None))
    column = rows["mode"] + " " + rows["phase"]
    cells = rows.assign(cell=times, column=column).pivot(index="seq_len", columns="column", values="cell")
    cells = cells.reindex(columns=column.unique())
    for title, mode, name in (
        ("before backward", "eager", "before_backward_bytes"),
        ("peak", "eager", "peak_bytes"),
        ("peak, compiled", "compiled", "peak_bytes"),
    ):
        counted = known(problems(rows, mode), name).set_index("seq_len")
        if len(counted):
            cells[title] = counted[name].map(data_size)
    memory = ", and memory in use" if len(known(rows, "peak_bytes")) else ""
    cells = cells.fillna("").tail(MOST_ROWS).rename_axis(columns=None).reset_index()
    title = say("head_dim {n}, medians in ms{memory}:", n=rows["head_dim"].iloc[0], memory=memory)
    return Table(title, cells.rename(columns={"seq_len": "length"}))


def _use_flash(end: Limit | None) -> list[Action]:
    """Advise against the whole score matrix where it was seen to run out."""
    if end is None or not end.shortest_oom:
        return []
    problem = end.first_too_long
    why = say(
        "With batch × heads = {batch} in fp32 plain attention runs out of {memory} beyond length {longest}. At {length}"
        " it would keep {saved} for the backward pass, FlashAttention {flash}.",
        batch=problem.batch_size * problem.num_heads,
        memory=data_size(end.memory_bytes),
        longest=count(end.longest_by_formula),
        length=problem.seq_len,
        saved=data_size(attention.saved_bytes(problem, ELEMENT_BYTES)),
        flash=data_size(attention.flash_saved_bytes(problem)),
    )
    return [Action(4, Markdown("**Use flash attention for long sequences.**"), why, "attention")]


def _compile(longest: pd.DataFrame) -> list[Action]:
    """Advise to compile plain attention where that clearly shortens a phase at the longest sequence and none grows."""
    if longest.empty:
        return []
    pairs = {phase: (longest.loc["eager", phase], longest.loc["compiled", phase]) for phase in ("forward", "backward")}
    gains = {phase: gain for phase, pair in pairs.items() if (gain := clear_gain(*pair))}
    if not gains or any(clear_gain(after, before) for before, after in pairs.values()):
        return []
    phase = max(gains, key=gains.__getitem__)
    before, after = pairs[phase]
    why = say(
        "At length {length}, head_dim {head_dim}, {phase} takes {after} instead of {before}, {gain}{memory}.",
        length=before["seq_len"],
        head_dim=before["head_dim"],
        phase=phase,
        after=ms(after["median_ms"]),
        before=ms(before["median_ms"]),
        gain=ratio(gains[phase]),
        memory=_peaks(longest),
    )
    return [Action(5, Markdown("**Compile plain attention where you keep it for long sequences.**"), why)]


def _peaks(longest: pd.DataFrame) -> str:
    peaks = known(longest, "peak_bytes")
    if len(peaks) < len(longest):
        return ""
    before, after = (data_size(peaks.loc[(mode, "forward"), "peak_bytes"]) for mode in ("eager", "compiled"))
    return f", and the peak is {after} instead of {before}"


def _attention_problem(rows: pd.DataFrame, end: Limit | None) -> list[Problem]:
    if end is None:
        return []
    problem = end.first_too_long
    first = say(
        "At batch {batch}, head_dim {head_dim} and length {length}{seen} the peak is {peak}, of which each score matrix"
        " is {matrix}.",
        batch=problem.batch_size,
        head_dim=problem.head_dim,
        length=problem.seq_len,
        seen=", which ran out," if end.shortest_oom else "",
        peak=data_size(attention.peak_bytes(problem, ELEMENT_BYTES, end.device_type)),
        matrix=data_size(problem.scores * ELEMENT_BYTES),
    )
    second = say(
        "{growth}FlashAttention keeps the log-sum-exp of each query instead: {flash} in place of {saved}.",
        growth=_growth(rows),
        flash=data_size(attention.flash_saved_bytes(problem)),
        saved=data_size(attention.saved_bytes(problem, ELEMENT_BYTES)),
    )
    return [Problem("pytorch_attention", Markdown(" ").join([first, second]))]


def _growth(rows: pd.DataFrame) -> Markdown:
    """Say how what is saved grows between the two longest sequences."""
    saved = known(problems(rows, "eager"), "saved_bytes").nlargest(2, "seq_len")
    if len(saved) < 2:
        return Markdown()
    exponent = growth_exponent(saved["seq_len"], saved["saved_bytes"])
    return say("What is saved for backward grows as length to the power {exponent}; ", exponent=number(exponent))


def _compile_problem(longest: pd.DataFrame) -> list[Problem]:
    if longest.empty:
        return []
    words = [
        f"{ms(longest.loc[('compiled', phase), 'median_ms'])} {phase} instead of"
        f" {ms(longest.loc[('eager', phase), 'median_ms'])}"
        for phase in ("forward", "backward")
    ]
    row = longest.iloc[0]
    answer = say(
        "Compiled, attention at length {length} and head_dim {head_dim} takes {words}{memory}.",
        length=row["seq_len"],
        head_dim=row["head_dim"],
        words=" and ".join(words),
        memory=_peaks(longest),
    )
    return [Problem("torch_compile (a)", answer)]
