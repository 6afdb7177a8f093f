"""The sharding section: what sharing the optimizer's state out saves in memory, and costs in time and bytes."""

from collections.abc import Sequence

import pandas as pd

from pipeline.formulas.training_state import KINDS
from pipeline.report import side_by_side
from pipeline.report.markup import Markdown
from pipeline.report.outcomes import WORTH_IT, not_measured, nothing_measured
from pipeline.report.page_parts import MOST_TABLE_ROWS, Action, Figure, Section, Table
from pipeline.report.section import count, data_size, listing, ratio
from pipeline.report.side_by_side import agree, step_words, text_cells, whole_steps, without_empty
from pipeline.report.tables import median_cells, significant
from pipeline.stages.sharding.report.facts import OURS, PLAIN, TORCHS, Run, named, runs
from pipeline.stages.sharding.report.figures import memory

TITLE = "What does sharding the optimizer's state save, and what does it cost?"
EXERCISE = "optimizer_state_sharding"


def build(rows: pd.DataFrame) -> Section:
    """Build the section from the rows of all its tables."""
    whole, measured = whole_steps(named(rows)), runs(rows)
    if not measured:
        return Section(TITLE, EXERCISE, nothing_measured(whole))
    answers = {
        "optimizer_state_sharding": _weights,
        "optimizer_state_sharding_accounting (a)": _moments,
        "optimizer_state_sharding_accounting (b)": _times,
        "optimizer_state_sharding_accounting (c)": _traffic,
    }
    return Section(
        TITLE,
        EXERCISE,
        _answer(measured),
        parts=[
            Figure("memory", _title(measured[0]), memory(measured)),
            _table(measured),
            not_measured(whole, "cell_name"),
        ],
        method=_method(pd.concat([run.steps for run in measured])),
        actions=_actions(measured),
        problems=side_by_side.problems(measured, answers),
    )


def _answer(measured: Sequence[Run]) -> str:
    lead = next((run for run in measured if (run.whole["status"] == "ok").all()), measured[0])
    takes = [f"{name} {_memory(lead, name)}takes {step_words(step)} a step" for name, step in lead.steps.iterrows()]
    return f"{lead.size} in {lead.name} on {lead.world_size} ranks: {'; '.join(takes)}."


def _memory(run: Run, optimizer: str) -> str:
    peaks, held = run.peak_bytes["measured"], run.kinds_bytes.sum(axis=1)
    if optimizer in peaks.index:
        return f"peaks at {data_size(peaks[optimizer])} and "
    return f"holds {data_size(held[optimizer])} and " if optimizer in held.index else ""


def _title(run: Run) -> str:
    states = run.kinds_bytes["optimizer_state"].reindex([PLAIN, OURS]).dropna()
    words = listing(f"{data_size(state)} with {name}" for name, state in states.items())
    return f"What a rank holds after a step{f': optimizer state {words} ({run.name})' if words else ''}"


def _table(measured: Sequence[Run]) -> Table:
    """Write an optimizer a row, for as many runs as can be read."""
    table = without_empty(pd.concat([_lines(run) for run in measured], ignore_index=True))
    title = "Median step [quartiles] and what the fullest rank holds and sends a step:"
    return Table(title, table.head(MOST_TABLE_ROWS))


def _lines(run: Run) -> pd.DataFrame:
    names = run.whole.index
    return pd.DataFrame(
        {
            "precision": run.name,
            "optimizer": names,
            "step (ms)": list(median_cells(run.whole)),
            "optimizer (ms)": text_cells(run.optimizer_ms, significant, names),
            "state": text_cells(run.kinds_bytes["optimizer_state"], data_size, names),
            "peak": text_cells(run.peak_bytes["measured"], data_size, names),
            "predicted peak": text_cells(run.peak_bytes["predicted"], data_size, names),
            "sent": text_cells(run.sent_bytes.sum(axis=1), data_size, names),
        }
    )


def _method(timed: pd.DataFrame) -> str:
    return (
        f"Batch {timed['setting_batch_size_per_rank'].max()} a rank, context {timed['setting_context_length'].max()}; "
        "gradients are averaged by an all-reduce a parameter during backward. Parameters, gradients and state are "
        f"counted tensor by tensor, the peak is the allocator's; {count(timed['n'].max())} steps are timed, each the "
        "slowest rank's, by the host clock."
    )


def _actions(measured: Sequence[Run]) -> list[Action]:
    """Advise to share the state out where that saves clear memory, or where AdamW in full does not fit."""
    for run in measured:
        peaks = run.peak_bytes["measured"]
        too_large = run.whole["status"].get(PLAIN) == "oom"
        saves = [name for name in (OURS, TORCHS) if name in peaks]
        saves = [name for name in saves if too_large or peaks.get(PLAIN, 0) >= WORTH_IT * peaks[name]]
        if saves:
            took = {
                name: f"{data_size(peak)} ({step_words(run.steps.loc[name])} a step)" for name, peak in peaks.items()
            }
            full = "runs out of memory" if too_large else f"peaks at {took[PLAIN]}"
            shared = listing(f"{name} at {took[name]}" for name in saves)
            why = f"{run.size} in {run.name} on {run.world_size} ranks: unsharded AdamW {full}, {shared}."
            return [Action(3, Markdown("**On several GPUs, shard the optimizer's state.**"), why)]
    return []


def _weights(run: Run) -> str:
    differences = run.steps["weight_difference"].dropna()
    if len(differences) < 2:
        return ""
    tolerance = run.steps["weight_tolerance"].iloc[0]
    do_agree = bool(differences.max() <= tolerance)
    return agree(f"{len(differences)} optimizers", f"{differences.max():.2g}", do_agree, tolerance)


def _moments(run: Run) -> str:
    moments = run.peaks_bytes.reindex([PLAIN, OURS]).dropna().map(data_size)
    peaks = [
        f"{name} peaks at {at['initialised']} after initialisation, {at['before_step']} before the optimizer's step "
        f"and {at['after_step']} after it"
        for name, at in moments.iterrows()
    ]
    kinds = listing(kind.replace("_", " ") for kind in KINDS)
    return "; ".join([*peaks, f"{kinds} {'' if run.exact else 'do not '}have the bytes predicted"]) + "."


def _times(run: Run) -> str:
    if not {PLAIN, OURS} <= set(run.steps.index):
        return ""
    plain, ours = run.steps.loc[PLAIN], run.steps.loc[OURS]
    return (
        f"a step takes {step_words(ours)} with the state shared out, {step_words(plain)} in full "
        f"({ratio(plain['median_ms'] / ours['median_ms'])})."
    )


def _traffic(run: Run) -> str:
    """Hold ours against ZeRO stage 1: reduce-scatter and all-gather send together what one ring all-reduce does."""
    if OURS not in run.sent_bytes.index:
        return ""
    gradients, parameters = run.sent_bytes.loc[OURS, ["allreduce", "broadcast"]]
    return (
        f"each rank sends {data_size(gradients)} for gradients (all-reduced) and {data_size(parameters)} for "
        "parameters (broadcast by their owners); ZeRO stage 1, with reduce-scatter and all-gather, would send "
        f"{data_size(gradients)}: ours sends {ratio((gradients + parameters) / gradients)} that."
    )
