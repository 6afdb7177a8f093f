"""The fsdp section: what fully sharded training saves in memory, and what it costs in time and bytes."""

from collections.abc import Sequence

import pandas as pd

from pipeline.report import side_by_side
from pipeline.report.markup import Markdown
from pipeline.report.outcomes import WORTH_IT, not_measured, nothing_measured
from pipeline.report.page_parts import MOST_TABLE_ROWS, Action, Figure, Section, Table, say
from pipeline.report.section import count, data_size, listing, ms, ratio
from pipeline.report.side_by_side import step_words, text_cells, whole_steps, without_empty
from pipeline.report.tables import median_cells, significant
from pipeline.stages.fsdp.report.facts import DDP, DDP_SHARDED, NOTHING, OURS, TORCHS, Run, named, runs
from pipeline.stages.fsdp.report.figures import time_and_memory

TITLE = "What does sharding parameters, gradients and optimizer state save, and what does it cost?"
EXERCISE = "fsdp"
IN_TIME = 0.05  # of a step: gathers that expose less arrive in time


def build(rows: pd.DataFrame) -> Section:
    """Build the section from the rows of all its tables."""
    whole, measured = whole_steps(named(rows)), runs(rows)
    if not measured:
        return Section(TITLE, EXERCISE, nothing_measured(whole))
    run = measured[0]
    takes = [f"{way} {_words(run, way)}" for way in (NOTHING, DDP, OURS, TORCHS) if way in run.steps.index]
    answers = {"fsdp": _losses, "fsdp_accounting (a)": _saved, "fsdp_accounting (b)": _gathers}
    return Section(
        TITLE,
        EXERCISE,
        f"{run.size} in {run.name} on {run.world_size} ranks: {'; '.join(takes)}.",
        parts=[
            Figure("time_and_memory", _title(run), time_and_memory(measured)),
            _table(measured),
            not_measured(whole, "cell_name"),
        ],
        method=(
            "AdamW; in bf16 all run under autocast, and the fully sharded ways with bf16 parameters. Exposed: only "
            "collectives ran, in profiled steps. Held: parameters, gradients and optimizer state, tensor by tensor. "
            f"{count(max(run.steps['n'].max() for run in measured))} steps are timed, each the slowest rank's, by the "
            "host clock."
        ),
        actions=_actions(measured),
        problems=side_by_side.problems(measured, answers),
    )


def _words(run: Run, way: str) -> str:
    """Say what a way takes in time and memory."""
    size, takes = run.fullest_bytes(way), f"takes {step_words(run.steps.loc[way])} a step"
    if size is None:
        return takes
    return f"{takes} and {'peaks at' if way in run.peak_bytes.index else 'holds'} {data_size(size)}"


def _title(run: Run) -> str:
    ours, ddp = run.fullest_bytes(OURS), run.fullest_bytes(DDP)
    if not ours or not ddp:
        return "Memory of the fullest rank over the time of a step"
    return f"Our FSDP takes {ratio(ours / ddp)} of the memory of DDP ({run.name})"


def _table(measured: Sequence[Run]) -> Table:
    """Write a way a row, for as many runs as can be read."""
    table = without_empty(pd.concat([_lines(run) for run in measured], ignore_index=True))
    title = "Median step [quartiles]; what the fullest rank holds after it, its peak, and what a rank sends a step:"
    return Table(title, table.head(MOST_TABLE_ROWS))


def _lines(run: Run) -> pd.DataFrame:
    ways = run.whole.index
    return pd.DataFrame(
        {
            "precision": run.name,
            "way": ways,
            "step (ms)": list(median_cells(run.whole)),
            "exposed (ms)": text_cells(run.whole["exposed_communication_ms"], significant, ways),
            "held": text_cells(run.held_bytes, data_size, ways),
            "peak": text_cells(run.peak_bytes["measured"], data_size, ways),
            "predicted": text_cells(run.peak_bytes["predicted"], data_size, ways),
            "sent": text_cells(run.sent_bytes, data_size, ways),
        }
    )


def _actions(measured: Sequence[Run]) -> list[Action]:
    """Advise to shard everything where that clearly saves memory, or where DDP does not fit."""
    for run in measured:
        if OURS not in run.peak_bytes.index:
            continue
        too_large = run.whole["status"].get(DDP) == "oom"
        ddp, ours = run.fullest_bytes(DDP), run.fullest_bytes(OURS)
        if too_large or (ddp and ours and ddp >= WORTH_IT * ours):
            before = "runs out of memory" if too_large else _words(run, DDP)
            setting = f"{run.size} in {run.name} on {run.world_size} ranks"
            why = f"{setting}: DDP {before}; our FSDP {_words(run, OURS)}."
            what = Markdown("**On several GPUs, shard parameters and gradients where memory is short.**")
            return [Action(3, what, why)]
    return []


def _losses(run: Run) -> str:
    losses = run.steps["loss"].reindex([DDP, OURS, TORCHS]).dropna()
    if OURS not in losses or len(losses) < 2:
        return ""
    return say(
        "after as many steps the loss is {losses}; bytes held and sent {fit}.",
        losses=listing(f"{loss:.4g} with {way}" for way, loss in losses.items()),
        fit="are those predicted" if run.exact else Markdown("**are not those predicted**"),
    )


def _saved(run: Run) -> str:
    ours, before = run.fullest_bytes(OURS), run.fullest_bytes(DDP_SHARDED)
    if ours is None or before is None:
        return ""
    return (
        f"sharding the optimizer's state alone leaves {data_size(before)} on the fullest rank, sharding everything "
        f"{data_size(ours)} ({ratio(before / ours)})."
    )


def _gathers(run: Run) -> str:
    """Say what of the gathering delays the step, from the captured one."""
    if OURS not in run.captures.index:
        return ""
    captured = run.captures.loc[OURS]
    in_time = captured["gather_exposed_ms"] < IN_TIME * captured["span_ms"]
    return (
        f"in a captured step gathers run for {ms(captured['gather_ms'])}, and nothing computes for "
        f"{ms(captured['gather_exposed_ms'])} of that: they {'arrive' if in_time else 'do not all arrive'} in time."
    )
