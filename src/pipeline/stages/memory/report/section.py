"""The memory section: what the peak is made of, what lowers it at which cost in time, and what the formulas predict."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.outcomes import not_measured, nothing_measured
from pipeline.report.page_parts import MOST_TABLE_ROWS, Figure, Section, Table
from pipeline.report.section import data_size, percent, ratio
from pipeline.report.tables import OUTCOME_WORDS, significant
from pipeline.stages.memory.report import checkpoints
from pipeline.stages.memory.report.actions import actions, flash_and_checkpoints
from pipeline.stages.memory.report.facts import (
    CATEGORY_WORDS,
    Recording,
    Unit,
    beside_variants,
    headline,
    main_size,
    outcomes,
    recordings,
    unit_for,
)
from pipeline.stages.memory.report.figures import composition, timelines, trade_off
from pipeline.stages.memory.report.problems import problems

TITLE = "What fills the memory, and what makes room?"
EXERCISE = "memory_profiling"
NAMED_KINDS = 3


def build(rows: pd.DataFrame) -> Section:
    """Build the section from the rows of all its tables."""
    recorded = recordings(rows)
    if not any(recording.measured for recording in recorded):
        return Section(TITLE, EXERCISE, nothing_measured(rows))
    # Steps of a chosen number of blocks have their own figure, and speak for the rest only where nothing else does.
    whole = [recording for recording in recorded if not recording.cell.num_layers]
    chosen = whole if any(recording.measured for recording in whole) else recorded
    size = main_size(chosen)
    shown = [recording for recording in chosen if recording.cell.size == size]
    lead, unit = headline(shown), unit_for(shown)
    return Section(
        TITLE,
        EXERCISE,
        _answer(lead, shown),
        parts=[
            *_composition(lead, shown, unit),
            *_trade(shown, unit),
            *checkpoints.depth_figure(recorded, unit),
            *_timeline(lead, shown, unit),
            _predictions(recorded),
            not_measured(outcomes(recorded), "what"),
        ],
        method=_method(lead),
        actions=actions(shown),
        problems=[*problems(shown), *checkpoints.problems(recorded)],
    )


def _answer(lead: Recording, shown: Sequence[Recording]) -> Markdown:
    device = "" if lead.allocator is None else f" of the device's {data_size(lead.allocator['device_bytes'])}"
    kinds = sorted(lead.peak.made_of.items(), key=lambda kind: kind[1], reverse=True)[:NAMED_KINDS]
    made_of = ", ".join(f"{data_size(size)} {CATEGORY_WORDS[name]}" for name, size in kinds if size)
    variant = "" if lead.plain else f", {lead.variant}"
    case = flash_and_checkpoints(shown)
    flash = f" With flash attention it peaks at {case.flash.size}." if case and case.eager is lead else ""
    return Markdown(f"A {lead.mode} ({lead.setting}{variant}) peaks at {lead.size}{device}: {made_of}.{flash}")


def _composition(lead: Recording, shown: Sequence[Recording], unit: Unit) -> list[Figure]:
    cell = lead.cell
    alike = [
        one for one in shown if replace(one.cell, precision=cell.precision, context_length=cell.context_length) == cell
    ]
    kind, size = max(lead.peak.made_of.items(), key=lambda kind: kind[1])
    title = (
        f"Memory at the peak of a {lead.mode} by kind ({cell.size}, batch {lead.batch_size}): at context "
        f"{cell.context_length} in {cell.precision} {percent(size / lead.peak.total_bytes)} of it is "
        f"{CATEGORY_WORDS[kind]}"
    )
    return [Figure("composition", Markdown(title), composition(alike, unit))]


def _amount(recording: Recording | None, unit: Unit) -> str:
    if recording is None:
        return ""
    if not recording.measured:
        return OUTCOME_WORDS[recording.status]
    return significant(recording.peak.total_bytes / unit.bytes)


def _trade(shown: Sequence[Recording], unit: Unit) -> list[Figure | Table]:
    groups = beside_variants(shown)
    if not groups:
        return []
    parts: list[Figure | Table] = []
    case, drawing = flash_and_checkpoints(shown), trade_off(groups, unit)
    if drawing is not None:
        words = "Peak memory against the time of a training step, by attention and checkpoints"
        if case:
            words += (
                f": {case.flash.size} and {case.flash.time} with flash attention, {case.checkpointed.size} and "
                f"{case.checkpointed.time} with checkpoints ({case.flash.setting})"
            )
        parts.append(Figure("trade", Markdown(words), drawing))
    while len(groups) > 1 and sum(map(len, groups)) > MOST_TABLE_ROWS:
        groups = groups[1:]
    lines = [_trade_row(one, group[0], unit) for group in groups for one in group][:MOST_TABLE_ROWS]
    title = Markdown("Training steps by attention and checkpoints, and their ratios to the first of each context:")
    return [*parts, Table(title, pd.DataFrame(lines))]


def _trade_row(one: Recording, base: Recording, unit: Unit) -> dict[str, object]:
    sizes = [recording.peak.total_bytes if recording.measured else math.nan for recording in (one, base)]
    return {
        "precision": one.cell.precision,
        "context": one.cell.context_length,
        "variant": one.variant,
        f"peak ({unit.name})": _amount(one, unit),
        "ratio": _ratio(*sizes),
        "peak is in": one.peak.phase if one.measured else "",
        "step (ms)": "" if one.step is None else significant(one.step_ms),
        "time ratio": _ratio(one.step_ms, base.step_ms),
    }


def _ratio(value: float, base: float) -> str:
    return "" if math.isnan(value / base) else ratio(value / base)


def _timeline(lead: Recording, shown: Sequence[Recording], unit: Unit) -> list[Figure]:
    alike = [one for one in shown if one.timeline and replace(one.cell, precision=lead.cell.precision) == lead.cell]
    if not alike or lead.cell.mode != "train_step":
        return []
    peaks = ", ".join(data_size(peak.total_bytes) for peak in lead.last_step.values())
    title = (
        f"Active memory over the first two training steps ({lead.setting}): forward, backward and optimizer of the "
        f"second peak at {peaks}"
    )
    return [Figure("timeline", Markdown(title), timelines(alike, unit))]


def _predictions(recorded: Sequence[Recording]) -> Markdown:
    """Say how near the formulas come, what they say of steps that ran out of memory, and what the allocator says."""
    measured = [one for one in recorded if one.measured]
    worst = max(measured, key=lambda one: abs(one.error))
    peaks = f"all {len(measured)} recorded peaks" if len(measured) > 1 else "the recorded peak"
    sentences = [
        f"Formulas from the shapes alone (`formulas/peak_memory.py`) give {peaks} within {percent(abs(worst.error))}; "
        f"the largest error is of a {worst.mode} ({worst.setting}, {worst.variant})."
    ]
    for one in recorded:
        if one.status == "oom":
            what = f"a {one.mode} that ran out of memory ({one.setting}, {one.variant})"
            sentences.append(f"They give {data_size(one.predicted_bytes)} for {what}.")
    counted = [one.allocator for one in measured if one.allocator is not None]
    if counted:
        more = max(own["reserved_peak_bytes"] / own["requested_peak_bytes"] - 1 for own in counted)
        sentences.append(f"The caching allocator reserved up to {percent(more)} more than was active.")
    return Markdown(" ".join(sentences))


def _method(lead: Recording) -> Markdown:
    recorder = "The caching allocator" if lead.device_type == "cuda" else "`torch.profiler`"
    return Markdown(
        f"{recorder} records every allocation of two passes or steps; peaks are the second's. Temporaries do not "
        "outlive the forward pass; other is the batch, tables and workspaces. Step times are without recording. Each "
        "cell keeps `snapshot.pickle` for pytorch.org's memory_viz.",
    )
