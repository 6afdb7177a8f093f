"""The sharding section: what sharing the optimizer's state out saves in memory, and costs in time and bytes."""

import pandas as pd

from pipeline.formulas.training_state import KINDS
from pipeline.report import memory_and_time, side_by_side
from pipeline.report.markup import Markdown
from pipeline.report.outcomes import not_measured, nothing_measured
from pipeline.report.page_parts import Action, Figure, Section
from pipeline.report.section import data_size, listing, ratio
from pipeline.report.side_by_side import agree, step_words, whole_steps
from pipeline.stages.sharding.report.facts import NAMES, OURS, PLAIN, TORCHS, Run, named, runs

TITLE = "What does sharding the optimizer's state save, and what does it cost?"
EXERCISE = "optimizer_state_sharding"
# The plain way, ours and torch's look as they do in the figure of fsdp.
STYLES = dict(zip(("none", "fsdp", "torch_fsdp"), NAMES.values(), strict=True))


def build(rows: pd.DataFrame) -> Section:
    """Build the section from the rows of all its tables."""
    whole, measured = whole_steps(named(rows)), runs(rows)
    if not measured:
        return Section(TITLE, EXERCISE, nothing_measured(whole))
    lead = next((run for run in measured if (run.whole["status"] == "ok").all()), measured[0])
    saved = memory_and_time.saved(measured, PLAIN, (OURS, TORCHS))
    answers = {
        "optimizer_state_sharding": _weights,
        "optimizer_state_sharding_accounting (a)": _moments,
        "optimizer_state_sharding_accounting (b)": _times,
        "optimizer_state_sharding_accounting (c)": _traffic,
    }
    return Section(
        TITLE,
        EXERCISE,
        memory_and_time.answer(lead, list(NAMES.values())),
        parts=[
            memory_and_time.other_precisions(measured, lead, list(NAMES.values())),
            Figure("time_and_memory", _title(measured[0]), memory_and_time.time_and_memory(measured, STYLES)),
            memory_and_time.table(measured, "optimizer"),
            not_measured(whole, "cell_name"),
        ],
        method=(
            "Gradients are all-reduced parameter by parameter during backward. " + memory_and_time.method(measured)
        ),
        actions=[Action(4, Markdown("**On several GPUs, shard the optimizer's state.**"), saved, "sharding")]
        if saved
        else [],
        problems=side_by_side.problems(measured, answers),
    )


def _title(run: Run) -> str:
    states = run.held_bytes["optimizer_state"].reindex([PLAIN, OURS]).dropna()
    words = listing(f"{data_size(state)} with {name}" for name, state in states.items())
    held = f": optimizer state {words} ({run.name})" if words else ""
    return f"Memory of the fullest rank over the time of a step{held}"


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
