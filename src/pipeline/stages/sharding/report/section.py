"""The sharding section: what sharing the optimizer's state out saves in memory, and costs in time and bytes."""

from collections.abc import Callable, Sequence

import pandas as pd

from pipeline.formulas.training_state import KINDS
from pipeline.report.markup import Markdown
from pipeline.report.outcomes import WORTH_IT, not_measured, nothing_measured
from pipeline.report.page_parts import MOST_TABLE_ROWS, Action, Figure, Problem, Section, Table, say
from pipeline.report.section import count, data_size, listing, ms, ratio
from pipeline.report.side_by_side import once_each
from pipeline.report.tables import median_cells, significant
from pipeline.stages.sharding.report.facts import OURS, PLAIN, TORCHS, Run, runs, whole_steps
from pipeline.stages.sharding.report.figures import memory

TITLE = "What does sharding the optimizer's state save, and what does it cost?"
EXERCISE = "optimizer_state_sharding"


def build(rows: pd.DataFrame) -> Section:
    """Build the section from the rows of all its tables."""
    whole, measured = whole_steps(rows), runs(rows)
    if not measured:
        return Section(TITLE, EXERCISE, nothing_measured(whole))
    missing = not_measured(whole, "cell_name")
    return Section(
        TITLE,
        EXERCISE,
        _answer(measured),
        parts=[Figure("memory", _title(measured), memory(measured)), _table(measured), missing],
        method=_method(pd.concat([run.steps for run in measured])),
        actions=_actions(measured),
        problems=_problems(measured),
    )


def _answer(measured: Sequence[Run]) -> Markdown:
    lead = next((run for run in measured if (run.whole["status"] == "ok").all()), measured[0])
    takes = [
        say(
            "{optimizer} {memory}takes {step} a step",
            optimizer=name,
            memory=_memory(lead, name),
            step=_step_words(step),
        )
        for name, step in lead.steps.iterrows()
    ]
    return say(
        "{size} in {name} on {n} ranks: {takes}.",
        size=lead.size,
        name=lead.name,
        n=lead.world_size,
        takes=Markdown("; ").join(takes),
    )


def _memory(run: Run, optimizer: str) -> str:
    if optimizer in run.peak_bytes.index:
        return f"peaks at {data_size(run.peak_bytes.loc[optimizer, 'measured'])} and "
    if optimizer in run.kinds_bytes.index:
        return f"holds {data_size(run.kinds_bytes.loc[optimizer].sum())} and "
    return ""


def _step_words(step: pd.Series) -> str:
    return f"{ms(step['median_ms'])}{' (unstable)' if step['status'] == 'unstable' else ''}"


def _title(measured: Sequence[Run]) -> Markdown:
    run = measured[0]
    states = run.kinds_bytes["optimizer_state"].reindex([PLAIN, OURS]).dropna()
    words = [f"{data_size(state)} with {name}" for name, state in states.items()]
    return say(
        "What a rank holds after a step{states}",
        states=f": optimizer state {listing(words)} ({run.name})" if words else "",
    )


def _table(measured: Sequence[Run]) -> Table:
    """Write an optimizer a row, for as many runs as can be read."""
    lines = [line for run in measured for line in _lines(run)][:MOST_TABLE_ROWS]
    table = pd.DataFrame(lines)
    empty = [name for name in table if (table[name] == "–").all()]
    title = "Median step [quartiles] and what the fullest rank holds and sends a step:"
    return Table(Markdown(title), table.drop(columns=empty))


def _lines(run: Run) -> list[dict[str, str]]:
    steps = median_cells(run.whole)
    return [
        {
            "precision": run.name,
            "optimizer": name,
            "step (ms)": steps[name],
            "optimizer (ms)": _entry(run.phases_ms, name, "optimizer", significant),
            "state": _entry(run.kinds_bytes, name, "optimizer_state", data_size),
            "peak": _entry(run.peak_bytes, name, "measured", data_size),
            "predicted peak": _entry(run.peak_bytes, name, "predicted", data_size),
            "sent": data_size(run.sent_bytes.loc[name].sum()) if name in run.sent_bytes.index else "–",
        }
        for name in run.whole.index
    ]


def _entry(table: pd.DataFrame, row: str, column: str, form: Callable[[float], str]) -> str:
    value = table[column].get(row)
    return "–" if value is None or pd.isna(value) else form(value)


def _method(timed: pd.DataFrame) -> Markdown:
    return say(
        "Batch {batch} a rank, context {context}; gradients are averaged by an all-reduce a parameter during backward. "
        "Parameters, gradients and state are counted tensor by tensor, the peak is the allocator's; {steps} steps are "
        "timed, each the slowest rank's, by the host clock.",
        batch=count(timed["setting_batch_size_per_rank"].max()),
        context=count(timed["setting_context_length"].max()),
        steps=count(timed["n"].max()),
    )


def _actions(measured: Sequence[Run]) -> list[Action]:
    """Advise to share the state out where that saves clear memory, or where AdamW in full does not fit."""
    for run in measured:
        peaks = run.peak_bytes["measured"]
        too_large = run.whole["status"].get(PLAIN) == "oom"
        better = [name for name in (OURS, TORCHS) if name in peaks and (too_large or _saves(peaks, name))]
        if better:
            why = say(
                "{size} in {name} on {ranks} ranks: unsharded AdamW {full}, {shared}.",
                full="runs out of memory" if too_large else f"peaks at {_peak_and_step(run, PLAIN)}",
                shared=listing([f"{name} at {_peak_and_step(run, name)}" for name in better]),
                size=run.size,
                name=run.name,
                ranks=run.world_size,
            )
            return [Action(3, Markdown("**On several GPUs, shard the optimizer's state.**"), why)]
    return []


def _saves(peaks: pd.Series, name: str) -> bool:
    return bool(peaks.get(PLAIN, 0) >= WORTH_IT * peaks[name])


def _peak_and_step(run: Run, name: str) -> str:
    return f"{data_size(run.peak_bytes.loc[name, 'measured'])} ({_step_words(run.steps.loc[name])} a step)"


def _problems(measured: Sequence[Run]) -> list[Problem]:
    answers: dict[str, Callable[[Run], Markdown]] = {
        "optimizer_state_sharding": _weights,
        "optimizer_state_sharding_accounting (a)": _moments,
        "optimizer_state_sharding_accounting (b)": _times,
        "optimizer_state_sharding_accounting (c)": _traffic,
    }
    said = {name: once_each((run.name, answer(run)) for run in measured) for name, answer in answers.items()}
    return [Problem(name, text) for name, text in said.items() if text]


def _weights(run: Run) -> Markdown:
    differences = run.steps["weight_difference"].dropna()
    if len(differences) < 2:
        return Markdown()
    tolerance = run.steps["weight_tolerance"].iloc[0]
    return say(
        "the weights of {n} optimizers {agree} after as many steps: they differ by {difference} (rounding may "
        "make {tolerance}).",
        n=len(differences),
        agree="agree" if differences.max() <= tolerance else Markdown("**do not agree**"),
        difference=f"{differences.max():.2g}",
        tolerance=f"{tolerance:.2g}",
    )


def _moments(run: Run) -> Markdown:
    peaks = [
        say(
            "{optimizer} peaks at {initialised} after initialisation, {before} before the optimizer's step and {after} "
            "after it",
            optimizer=optimizer,
            initialised=data_size(moments["initialised"]),
            before=data_size(moments["before_step"]),
            after=data_size(moments["after_step"]),
        )
        for optimizer, moments in run.peaks_bytes.reindex([PLAIN, OURS]).dropna().iterrows()
    ]
    kinds = listing([kind.replace("_", " ") for kind in KINDS])
    fit = "have the bytes predicted" if run.exact else "do not have the bytes predicted"
    return say("{peaks}.", peaks=Markdown("; ").join([*peaks, say("{kinds} {fit}", kinds=kinds, fit=fit)]))


def _times(run: Run) -> Markdown:
    if not {PLAIN, OURS} <= set(run.steps.index):
        return Markdown()
    plain, ours = run.steps.loc[PLAIN], run.steps.loc[OURS]
    return say(
        "a step takes {ours} with the state shared out, {plain} in full ({times}).",
        ours=_step_words(ours),
        plain=_step_words(plain),
        times=ratio(plain["median_ms"] / ours["median_ms"]),
    )


def _traffic(run: Run) -> Markdown:
    """Hold ours against ZeRO stage 1: reduce-scatter and all-gather send together what one ring all-reduce does."""
    if OURS not in run.sent_bytes.index:
        return Markdown()
    ours = run.sent_bytes.loc[OURS]
    return say(
        "each rank sends {gradients} for gradients (all-reduced) and {parameters} for parameters (broadcast by "
        "their owners); ZeRO stage 1, with reduce-scatter and all-gather, would send {zero}: ours sends {times} that.",
        gradients=data_size(ours["allreduce"]),
        parameters=data_size(ours["broadcast"]),
        zero=data_size(ours["allreduce"]),
        times=ratio(ours.sum() / ours["allreduce"]),
    )
