"""What to do about memory on this machine, each where the recordings bear it out."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pipeline.report.markup import Markdown
from pipeline.report.outcomes import WORTH_IT, clear_gain
from pipeline.report.page_parts import Action
from pipeline.report.section import data_size, percent
from pipeline.stages.memory.report.facts import Recording, plain_steps


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
    for eager in _longest_first(plain_steps(shown)):
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


def _longest_first(recorded: Sequence[Recording]) -> list[Recording]:
    """Return the recordings that were timed too, at the longest context first."""
    timed = [one for one in recorded if one.measured and one.step is not None]
    return sorted(timed, key=lambda one: one.cell.context_length, reverse=True)


def _find(shown: Sequence[Recording], like: Recording, **changed: Any) -> Recording | None:
    wanted = replace(like.cell, **changed)
    return next((one for one in _longest_first(shown) if one.cell == wanted), None)


def _flash_first(shown: Sequence[Recording]) -> list[Action]:
    case = flash_and_checkpoints(shown)
    if case is None:
        return []
    eager, flash, checkpointed = case
    why = (
        f"A step of {eager.setting} goes from {eager.time} to {flash.time} and from {eager.size} to {flash.size}; "
        f"checkpointing every block reaches {checkpointed.size}, but takes {checkpointed.time}."
    )
    for ran_out in plain_steps(shown):
        fits = _find(shown, ran_out, attention="flash")
        if ran_out.status == "oom" and fits:
            where = f"context {ran_out.cell.context_length} in {ran_out.cell.precision}"
            why += f" At {where} plain attention runs out of memory and flash attention peaks at {fits.size}."
    return [Action(2, Markdown("**Use flash attention before checkpointing.**"), Markdown(why), "attention")]


def _checkpoints_with_flash(shown: Sequence[Recording]) -> list[Action]:
    """Advise checkpoints where flash attention does not fit, if they save memory beside it."""
    flash = [one for one in shown if one.cell.attention == "flash" and not one.cell.checkpoint_every]
    for without in _longest_first(flash):
        kept = _find(shown, without, checkpoint_every=1)
        if kept and without.peak.total_bytes >= WORTH_IT * kept.peak.total_bytes:
            time = f"{kept.step_ms / without.step_ms - 1:+.0%} time"
            why = f"{without.setting}: {without.size} → {kept.size} at {time}"
            if kept.peak.phase == "optimizer":
                why += "; the peak is then the default AdamW's update, which checkpoints cannot lower"
            what = Markdown("**Where flash attention alone takes too much memory, checkpoint every block too.**")
            return [Action(2, what, Markdown(f"{why}."))]
    return []


def _fused_adamw(shown: Sequence[Recording]) -> list[Action]:
    """Advise an update without temporaries where AdamW's are a clear part of the peak."""
    steps = [one for one in shown if one.measured and one.cell.mode == "train_step"]
    # On a CPU parameters are updated one after the other.
    at_update = [one for one in steps if one.peak.phase == "optimizer" and one.device_type == "cuda"]
    at_update = [
        one
        for one in at_update
        if one.peak.total_bytes >= WORTH_IT * (one.peak.total_bytes - one.peak.made_of["temporaries"])
    ]
    if not at_update:
        return []
    largest = max(at_update, key=lambda one: one.peak.total_bytes)
    temporaries = largest.peak.made_of["temporaries"]
    why = (
        f"In {len(at_update)} of {len(steps)} recorded training steps the update is the peak, which neither attention "
        f"nor checkpoints lower. Of {largest.size} ({largest.setting}), {data_size(temporaries)} "
        f"({percent(temporaries / largest.peak.total_bytes)}) are temporaries that only the foreach update makes."
    )
    return [Action(4, Markdown("**Use fused AdamW where the update is the peak.**"), Markdown(why), "optimizer")]
