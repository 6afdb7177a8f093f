"""The memory section: what the peak is made of, what lowers it at which cost in time, and what the formulas predict."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from pipeline.formulas.peak_memory import MODES
from pipeline.report.markup import Markdown
from pipeline.report.outcomes import not_measured, nothing_measured
from pipeline.report.page_parts import MOST_TABLE_ROWS, Figure, Section, Table, say
from pipeline.report.section import count, data_size, ms, percent
from pipeline.report.tables import OUTCOME_WORDS, significant
from pipeline.stages.memory.report.actions import actions, flash_and_checkpoints
from pipeline.stages.memory.report.facts import (
    CATEGORY_WORDS,
    MODE_WORDS,
    Recording,
    Unit,
    beside_variants,
    headline,
    main_size,
    outcomes,
    recordings,
    setting,
    unit_for,
    variant,
)
from pipeline.stages.memory.report.figures import composition, timelines, trade_off
from pipeline.stages.memory.report.problems import problems

TITLE = "What fills the memory, and what makes room?"
EXERCISE = "memory_profiling"
NAMED_KINDS = 3


def build(rows: pd.DataFrame, figures_dir: Path) -> Section:
    """Build the section from the rows of all its tables."""
    recorded = recordings(rows)
    if not any(recording.measured for recording in recorded):
        return Section(TITLE, EXERCISE, nothing_measured(rows))
    size = main_size(recorded)
    shown = [recording for recording in recorded if recording.cell.size == size]
    lead, unit = headline(shown), unit_for(shown)
    return Section(
        TITLE,
        EXERCISE,
        _answer(lead, shown),
        parts=[
            *_composition(lead, shown, unit),
            *_peaks(shown, unit),
            *_trade(shown, unit),
            *_timeline(lead, shown, unit),
            _predictions(recorded),
            *filter(None, [not_measured(outcomes(recorded), "what")]),
        ],
        method=_method(lead),
        actions=actions(shown),
        problems=problems(shown),
    )


def _answer(lead: Recording, shown: Sequence[Recording]) -> Markdown:
    of_device = ""
    if lead.allocator is not None:
        of_device = f" of the device's {data_size(lead.allocator['device_bytes'])}"
    kinds = sorted(lead.peak.made_of.items(), key=lambda kind: kind[1], reverse=True)[:NAMED_KINDS]
    case = flash_and_checkpoints(shown)
    flash = case.flash if case else None
    return say(
        "A {mode} ({setting}{variant}) peaks at {peak}{of_device}: {kinds}.{flash}",
        mode=MODE_WORDS[lead.cell.mode],
        setting=setting(lead),
        variant="" if lead.plain else f", {variant(lead.cell)}",
        peak=data_size(lead.peak.total_bytes),
        of_device=of_device,
        kinds=", ".join(f"{data_size(size)} {CATEGORY_WORDS[name]}" for name, size in kinds if size),
        flash=f" With flash attention it peaks at {data_size(flash.peak.total_bytes)}."
        if flash and case.eager is lead
        else "",
    )


def _composition(lead: Recording, shown: Sequence[Recording], unit: Unit) -> list[Figure]:
    alike = [other for other in shown if other.cell == other.like(**lead.variant) and other.cell.mode == lead.cell.mode]
    largest = max(lead.peak.made_of, key=lambda name: lead.peak.made_of[name])
    title = say(
        "Memory at the peak of a {mode} by kind ({size}, batch {batch}): at context {context} in {precision} {share} "
        "of it is {kind}",
        mode=MODE_WORDS[lead.cell.mode],
        size=lead.cell.size,
        batch=lead.batch_size,
        context=lead.cell.context_length,
        precision=lead.cell.precision,
        share=percent(lead.peak.made_of[largest] / lead.peak.total_bytes),
        kind=CATEGORY_WORDS[largest],
    )
    return [Figure("composition", title, composition(alike, unit))]


def _peaks(shown: Sequence[Recording], unit: Unit) -> list[Table]:
    """Write the peaks of plain cells by precision and context, the longest contexts first to stay."""
    plain = [recording for recording in shown if recording.plain]
    settings = list(dict.fromkeys((recording.cell.precision, recording.cell.context_length) for recording in plain))
    if not settings:
        return []
    settings = sorted(sorted(settings, key=lambda key: key[1])[-MOST_TABLE_ROWS:], key=settings.index)
    cells = {(item.cell.precision, item.cell.context_length, item.cell.mode): item for item in plain}
    columns = {
        f"{MODE_WORDS[mode]} ({unit.name})": [_amount(cells.get((*key, mode)), unit) for key in settings]
        for mode in MODES
        if any((*key, mode) in cells for key in settings)
    }
    steps = [cells.get((*key, "train_step")) for key in settings]
    table = pd.DataFrame(settings, columns=["precision", "context"]).assign(**columns)
    if any(step and step.measured for step in steps):
        table["step's peak is in"] = [step.peak.phase if step and step.measured else "" for step in steps]
    title = say(
        "Peaks with eager attention and no checkpoints, {unit} of {n} bytes:", unit=unit.name, n=count(unit.bytes)
    )
    return [Table(title, table)]


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
        words = Markdown("Peak memory against the time of a training step, by attention and checkpoints")
        if case:
            words += say(
                ": {flash} and {flash_ms} with flash attention, {kept} and {kept_ms} with checkpoints ({setting})",
                flash=data_size(case.flash.peak.total_bytes),
                flash_ms=ms(case.flash.step["median_ms"]),
                kept=data_size(case.checkpointed.peak.total_bytes),
                kept_ms=ms(case.checkpointed.step["median_ms"]),
                setting=setting(case.flash),
            )
        parts.append(Figure("trade", words, drawing))
    while len(groups) > 1 and sum(map(len, groups)) > MOST_TABLE_ROWS:
        groups = groups[1:]
    lines = [_trade_row(recording, group[0], unit) for group in groups for recording in group][:MOST_TABLE_ROWS]
    title = Markdown(
        "Training steps with other attention or checkpoints, and their ratios to the first of each context:"
    )
    return [*parts, Table(title, pd.DataFrame(lines))]


def _trade_row(recording: Recording, base: Recording, unit: Unit) -> dict[str, object]:
    cell, peak, step = recording.cell, recording.peak if recording.measured else None, recording.step
    base_peak = base.peak.total_bytes if base.measured else None
    base_ms = base.step["median_ms"] if base.step is not None else None
    return {
        "precision": cell.precision,
        "context": cell.context_length,
        "variant": variant(cell),
        f"peak ({unit.name})": _amount(recording, unit),
        "ratio": f"{significant(peak.total_bytes / base_peak)}×" if peak and base_peak else "",
        "peak is in": peak.phase if peak else "",
        "step (ms)": significant(step["median_ms"]) if step is not None else "",
        "time ratio": f"{significant(step['median_ms'] / base_ms)}×" if step is not None and base_ms else "",
    }


def _timeline(lead: Recording, shown: Sequence[Recording], unit: Unit) -> list[Figure]:
    alike = [other for other in shown if other.timeline and other.cell == lead.like(precision=other.cell.precision)]
    if not alike or lead.cell.mode != "train_step":
        return []
    phases = lead.last_step
    title = say(
        "Active memory over the first two training steps ({setting}): forward, backward and optimizer of the second "
        "peak at {peaks}",
        setting=setting(lead),
        peaks=", ".join(data_size(peak.total_bytes) for peak in phases.values()),
    )
    return [Figure("timeline", title, timelines(alike, unit))]


def _predictions(recorded: Sequence[Recording]) -> Markdown:
    """Say how near the formulas come, what they say of steps that ran out of memory, and what the allocator says."""
    measured = [recording for recording in recorded if recording.measured]
    worst = max(measured, key=lambda recording: abs(recording.error))
    sentences = [
        say(
            "Formulas from the shapes alone (`formulas/peak_memory.py`) give {n} recorded {peaks} within {error}; the "
            "largest error is of a {mode} ({setting}, {variant}).",
            n=f"all {len(measured)}" if len(measured) > 1 else "the",
            peaks="peaks" if len(measured) > 1 else "peak",
            error=percent(abs(worst.error)),
            mode=MODE_WORDS[worst.cell.mode],
            setting=setting(worst),
            variant=variant(worst.cell),
        )
    ]
    for one in recorded:
        if one.status == "oom":
            words = "They give {size} for a {mode} that ran out of memory ({setting}, {variant})."
            need, mode = data_size(one.predicted_bytes), MODE_WORDS[one.cell.mode]
            sentences.append(say(words, size=need, mode=mode, setting=setting(one), variant=variant(one.cell)))
    reserved = [
        one.allocator["reserved_peak_bytes"] / one.highest_bytes - 1 for one in measured if one.allocator is not None
    ]
    if reserved:
        sentences.append(say("The caching allocator reserved up to {more} more.", more=percent(max(reserved))))
    return Markdown(" ").join(sentences)


def _method(lead: Recording) -> Markdown:
    recorder = "the caching allocator" if lead.device_type == "cuda" else "`torch.profiler`"
    return say(
        "Every allocation and release is recorded by {recorder} from before the model is built through two passes or "
        "steps, and replayed; peaks are the second's. Activations outlive the forward pass or are recomputed in the "
        "backward pass; temporaries are released again; other is the batch, tables and libraries' workspaces. Step "
        "times are medians without recording. Each cell keeps `snapshot.pickle` for pytorch.org's memory_viz.",
        recorder=Markdown(recorder),
    )
