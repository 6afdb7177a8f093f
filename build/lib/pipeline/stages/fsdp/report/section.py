"""The fsdp section: what fully sharded training saves in memory, and what it costs in time and bytes."""

import pandas as pd

from pipeline.report import memory_and_time, side_by_side
from pipeline.report.markup import Markdown, code
from pipeline.report.memory_and_time import Run
from pipeline.report.outcomes import not_measured, nothing_measured
from pipeline.report.page_parts import Action, Figure, Section, say
from pipeline.report.section import data_size, listing, ms, percent, ratio
from pipeline.report.side_by_side import is_as_timed, whole_steps
from pipeline.stages.fsdp.report.facts import DDP, DDP_SHARDED, NAMES, NOTHING, OURS, TORCHS, named, runs

TITLE = "What does sharding parameters, gradients and optimizer state save, and what does it cost?"
EXERCISE = "fsdp"
IN_TIME = 0.1  # of the time that they take: gathers that expose less arrive in time


def build(rows: pd.DataFrame) -> Section:
    """Build the section from the rows of all its tables."""
    whole, measured = whole_steps(named(rows)), runs(rows)
    if not measured:
        return Section(TITLE, EXERCISE, nothing_measured(whole))
    told = (NOTHING, DDP, OURS, TORCHS)
    # In bf16 the sharded ways reduce gradients in bf16, DDP in fp32: that is not the same step.
    alike = [run for run in measured if run.precision != "bf16"]
    saved = memory_and_time.saved(alike, DDP, [OURS, TORCHS])
    what = Markdown("**On several GPUs, shard parameters, gradients and the optimizer's state.**")
    why = say("{saved} Ours is {name} of {module}.", saved=saved, name=code("FSDP"), module=code("pipeline.parallel"))
    return Section(
        TITLE,
        EXERCISE,
        memory_and_time.answer(measured[0], told),
        parts=[
            memory_and_time.other_precisions(measured, measured[0], told),
            Figure("time_and_memory", _title(measured[0]), memory_and_time.time_and_memory(measured, NAMES)),
            memory_and_time.table(measured, "way"),
            not_measured(whole, "cell_name"),
        ],
        method=(
            "AdamW, which updates only a rank's share where that is sharded: such a step can take less time than one "
            "without communication. Our DDP all-reduces each parameter during backward; by matrix: units are matrices "
            "instead of blocks. In bf16 all run under autocast; the fully sharded ways hold fp32 shards, and gather "
            "parameters and reduce gradients in bf16. "
            f"{memory_and_time.method(measured)}"
        ),
        actions=[Action(3, what, why, "sharding")] if saved else [],
        problems=side_by_side.problems(
            measured, {"fsdp": _losses, "fsdp_accounting (a)": _saved, "fsdp_accounting (b)": _gathers}
        ),
    )


def _title(run: Run) -> str:
    ours, ddp = run.fullest_bytes(OURS), run.fullest_bytes(DDP)
    if not ours or not ddp:
        return "Memory of the fullest rank over the time of a step"
    return f"Our FSDP takes {ratio(ours / ddp)} the memory of DDP ({run.name})"


def _losses(run: Run) -> str:
    losses = run.steps["loss"].reindex([DDP, OURS, TORCHS]).dropna()
    if OURS not in losses or len(losses) < 2:
        return ""
    return say(
        "after the same number of steps the loss is {losses}; bytes held and sent {fit}.",
        losses=listing(f"{loss:.4g} with {way}" for way, loss in losses.items()),
        fit="are those of the formulas" if run.exact else Markdown("**are not those of the formulas**"),
    )


def _saved(run: Run) -> str:
    ours, before = run.fullest_bytes(OURS), run.fullest_bytes(DDP_SHARDED)
    if ours is None or before is None:
        return ""
    return (
        f"the fullest rank peaks at {data_size(before)} with the optimizer's state alone sharded, at {data_size(ours)} "
        f"with everything ({ratio(before / ours)})."
    )


def _gathers(run: Run) -> str:
    """Say what of the gathering delays the step, from the captured one."""
    captures = run.rows[run.rows["measures"] == "capture"]
    if OURS not in captures.index or OURS not in run.steps.index:
        return ""
    captured = captures.loc[OURS]
    if not is_as_timed(captured["span_ms"], run.steps.loc[OURS, "median_ms"]):
        return ""  # a capture so disturbed tells nothing of the timed steps
    exposed_ms, in_time = captured["gather_exposed_ms"], captured["gather_exposed_ms"] < IN_TIME * captured["gather_ms"]
    return (
        f"in a captured step of {ms(captured['span_ms'])} gathers run for {ms(captured['gather_ms'])}, waits for the "
        f"other ranks included; for {ms(exposed_ms)} of that, {percent(exposed_ms / captured['span_ms'])} of the step, "
        f"nothing computes: they {'arrive' if in_time else 'do not all arrive'} in time."
    )
