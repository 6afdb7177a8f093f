"""What to do about memory on this machine, each where the recordings bear it out."""

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.report.markup import Markdown
from pipeline.report.outcomes import WORTH_IT, clear_gain
from pipeline.report.page_parts import Action, say
from pipeline.report.section import data_size, ms, percent
from pipeline.stages.memory.report.facts import Recording, plain_steps, setting


class Case(NamedTuple):
    """Three training steps alike but for attention and checkpoints, all recorded and timed."""

    eager: Recording
    flash: Recording
    checkpointed: Recording


def actions(shown: Sequence[Recording]) -> list[Action]:
    """List what to do: flash attention, checkpoints beside it, another AdamW."""
    return [*_flash_first(shown), *_checkpoints_with_flash(shown), *_fused_adamw(shown)]


def flash_and_checkpoints(shown: Sequence[Recording]) -> Case | None:
    """Find a step at which flash attention clearly saves memory and takes clearly less time than checkpoints do.

    Of several the one at the longest context. None where there is none, or where flash is clearly slower than eager.
    """
    for eager in sorted(_timed(plain_steps(shown)), key=lambda one: one.cell.context_length, reverse=True):
        flash = _find(shown, eager, attention="flash")
        checkpointed = _find(shown, eager, checkpoint_every=1)
        if (
            flash
            and checkpointed
            and eager.peak.total_bytes >= WORTH_IT * flash.peak.total_bytes
            and clear_gain(checkpointed.step, flash.step)
            and not clear_gain(flash.step, eager.step)
        ):
            return Case(eager, flash, checkpointed)
    return None


def _timed(recorded: Sequence[Recording]) -> list[Recording]:
    return [recording for recording in recorded if recording.measured and recording.step is not None]


def _find(shown: Sequence[Recording], like: Recording, **changed: object) -> Recording | None:
    return next((recording for recording in _timed(shown) if recording.cell == like.like(**changed)), None)


def _flash_first(shown: Sequence[Recording]) -> list[Action]:
    case = flash_and_checkpoints(shown)
    if case is None:
        return []
    why = say(
        "{setting}: {eager_ms} → {flash_ms} and {eager} → {flash}; checkpointing every block reaches {kept} at {more} "
        "time.",
        setting=setting(case.eager),
        eager_ms=ms(case.eager.step["median_ms"]),
        flash_ms=ms(case.flash.step["median_ms"]),
        eager=data_size(case.eager.peak.total_bytes),
        flash=data_size(case.flash.peak.total_bytes),
        kept=data_size(case.checkpointed.peak.total_bytes),
        more=_more_time(case.checkpointed, case.eager),
    )
    for ran_out in plain_steps(shown):
        fits = _find(shown, ran_out, attention="flash")
        if ran_out.status == "oom" and fits:
            why += say(
                " At context {context} in {precision} eager attention runs out of memory, flash peaks at {peak}.",
                context=ran_out.cell.context_length,
                precision=ran_out.cell.precision,
                peak=data_size(fits.peak.total_bytes),
            )
    return [Action(2, Markdown("**Flash attention before checkpointing.**"), why)]


def _checkpoints_with_flash(shown: Sequence[Recording]) -> list[Action]:
    """Advise checkpoints where flash attention does not fit, if they save memory beside it."""
    flash = [one for one in _timed(shown) if one.cell.attention == "flash" and not one.cell.checkpoint_every]
    for without in sorted(flash, key=lambda one: one.cell.context_length, reverse=True):
        kept = _find(shown, without, checkpoint_every=1)
        if kept and without.peak.total_bytes >= WORTH_IT * kept.peak.total_bytes:
            why = say(
                "{setting}: {without} → {kept}, at {more} time.",
                setting=setting(without),
                without=data_size(without.peak.total_bytes),
                kept=data_size(kept.peak.total_bytes),
                more=_more_time(kept, without),
            )
            return [Action(5, Markdown("**Checkpoint every block where flash attention does not fit.**"), why)]
    return []


def _more_time(recording: Recording, base: Recording) -> str:
    return f"{recording.step['median_ms'] / base.step['median_ms'] - 1:+.0%}"


def _fused_adamw(shown: Sequence[Recording]) -> list[Action]:
    """Advise an update without temporaries where AdamW's are a clear part of the peak."""
    steps = [recording for recording in shown if recording.measured and recording.cell.mode == "train_step"]
    at_update = [one for one in steps if one.peak.phase == "optimizer" and _saving(one) >= WORTH_IT]
    # On a CPU parameters are updated one after the other.
    if not at_update or at_update[0].device_type != "cuda":
        return []
    largest = max(at_update, key=lambda recording: recording.peak.total_bytes)
    why = say(
        "In {n} of {steps} recorded training steps the update is the peak, which neither attention nor checkpoints "
        "lower: {peak} ({setting}), {temporaries} of it ({share}) temporaries of the foreach update, which the fused "
        "one does not make.",
        n=len(at_update),
        steps=len(steps),
        peak=data_size(largest.peak.total_bytes),
        setting=setting(largest),
        temporaries=data_size(largest.peak.made_of["temporaries"]),
        share=percent(largest.peak.made_of["temporaries"] / largest.peak.total_bytes),
    )
    return [Action(4, Markdown("**Fused AdamW where the update is the peak.**"), why)]


def _saving(recording: Recording) -> float:
    peak = recording.peak
    return peak.total_bytes / max(1, peak.total_bytes - peak.made_of["temporaries"])
