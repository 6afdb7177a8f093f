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
from pipeline.stages.memory.report import checkpoints, figures
from pipeline.stages.memory.report.actions import actions, flash_and_checkpoints
from pipeline.stages.memory.report.facts import (
    CATEGORY_WORDS,
    Recording,
    beside_variants,
    headline,
    of_main_size,
    recordings,
)
from pipeline.stages.memory.report.problems import problems

TITLE = "What fills the memory, and what makes room?"
EXERCISE = "memory_profiling"
NAMED_KINDS = 3
UNSTABLE = {"unstable": " (unstable)"}


def build(rows: pd.DataFrame) -> Section:
    """Build the section from the rows of all its tables."""
    recorded = recordings(rows)
    if not any(one.measured for one in recorded):
        return Section(TITLE, EXERCISE, nothing_measured(rows))
    # Steps of a chosen number of blocks speak for the rest only where nothing else does.
    whole = [one for one in recorded if not one.cell.num_layers]
    shown = of_main_size(whole if any(one.measured for one in whole) else recorded)
    lead = headline(shown)
    outcomes = [
        {
            "what": f"{one.setting}, {one.mode}, {one.variant}",
            "status": one.status,
            "reason": next(iter(one.rows["reason"].dropna()), ""),
        }
        for one in recorded
    ]
    return Section(
        TITLE,
        EXERCISE,
        _answer(lead, shown),
        parts=[
            _composition(lead, shown),
            *_trade(shown),
            *_timeline(lead, shown),
            _predictions(recorded),
            not_measured(pd.DataFrame(outcomes), "what"),
        ],
        method=_method(lead),
        actions=actions(shown),
        problems=[*problems(shown), *checkpoints.problems(recorded)],
    )


def _answer(lead: Recording, shown: Sequence[Recording]) -> str:
    counted = lead.only("allocator")
    device = "" if counted is None else f" of the {data_size(counted['device_bytes'])} that can be allocated"
    kinds = sorted(lead.peak.made_of.items(), key=lambda kind: kind[1], reverse=True)[:NAMED_KINDS]
    made_of = ", ".join(f"{data_size(size)} {CATEGORY_WORDS[name]}" for name, size in kinds if size)
    variant = "" if lead.plain else f", {lead.variant}"
    case = flash_and_checkpoints(shown)
    flash = f" With flash attention it peaks at {case.flash.size}." if case and case.eager is lead else ""
    return f"A {lead.mode} ({lead.setting}{variant}) peaks at {lead.size}{device}: {made_of}.{flash}"


def _composition(lead: Recording, shown: Sequence[Recording]) -> Figure:
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
    return Figure("composition", title, figures.composition(alike))


def _trade(shown: Sequence[Recording]) -> list[Table]:
    groups = beside_variants(shown)
    while len(groups) > 1 and sum(map(len, groups)) > MOST_TABLE_ROWS:
        groups = groups[1:]
    lines = [_trade_row(one, _first_that_fits(group)) for group in groups for one in group][:MOST_TABLE_ROWS]
    title = "Training steps by attention and checkpoints, and their ratios to the first of each context that fits:"
    return [Table(title, pd.DataFrame(lines))] if lines else []


def _first_that_fits(group: Sequence[Recording]) -> Recording:
    return next((one for one in group if one.measured), group[0])


def _trade_row(one: Recording, base: Recording) -> dict[str, object]:
    both = one.measured and base.measured
    return {
        "precision": one.cell.precision,
        "context": one.cell.context_length,
        "variant": one.variant,
        "peak": one.size if one.measured else OUTCOME_WORDS[one.status],
        "ratio": ratio(one.peak.total_bytes / base.peak.total_bytes) if both else "",
        "peak is in": one.peak.phase if one.measured else "",
        "step (ms)": "" if one.step is None else significant(one.step_ms) + UNSTABLE.get(one.step["status"], ""),
        "time ratio": "" if math.isnan(one.step_ms / base.step_ms) else ratio(one.step_ms / base.step_ms),
    }


def _timeline(lead: Recording, shown: Sequence[Recording]) -> list[Figure]:
    alike = [
        one
        for one in shown
        if len(one.of("timeline")) and replace(one.cell, precision=lead.cell.precision) == lead.cell
    ]
    if not alike or lead.cell.mode != "train_step":
        return []
    peaks = ", ".join(data_size(peak.total_bytes) for peak in lead.last_step.values())
    title = (
        f"Active memory over the first two training steps ({lead.setting}): forward, backward and optimizer of the "
        f"second peak at {peaks}"
    )
    return [Figure("timeline", title, figures.timelines(alike))]


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
    counted = pd.concat([one.of("allocator") for one in measured])
    if len(counted):
        given, reserved = (
            percent((counted[f"{name}_peak_bytes"] / counted["requested_peak_bytes"]).max() - 1)
            for name in ("allocated", "reserved")
        )
        sentences.append(
            "Peaks here are of the bytes asked for; what the allocator gives, which other sections show, is up to "
            f"{given} more, and what it reserves up to {reserved}."
        )
    return Markdown(" ".join(sentences))


def _method(lead: Recording) -> Markdown:
    recorder = "The caching allocator" if lead.device_type == "cuda" else "`torch.profiler`"
    return Markdown(
        f"{recorder} records every allocation of two passes or steps; peaks are the second's. Activations are "
        "what the forward pass keeps, or backward makes again; temporaries all else that is released; other is the "
        "batch, tables and workspaces. Step times are without recording. Each cell keeps `snapshot.pickle` for "
        "pytorch.org's memory_viz."
    )
