"""The fsdp section: what fully sharded training saves in memory, and what it costs in time and bytes."""

from collections.abc import Callable, Sequence

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.outcomes import WORTH_IT, not_measured, nothing_measured
from pipeline.report.page_parts import MOST_TABLE_ROWS, Action, Figure, Problem, Section, Table, say
from pipeline.report.section import count, data_size, listing, ms, ratio
from pipeline.report.side_by_side import once_each
from pipeline.report.tables import median_cells, significant
from pipeline.stages.fsdp.report.facts import DDP, DDP_SHARDED, NOTHING, OURS, TORCHS, Run, runs, whole_steps
from pipeline.stages.fsdp.report.figures import time_and_memory

TITLE = "What does sharding parameters, gradients and optimizer state save, and what does it cost?"
EXERCISE = "fsdp"


def build(rows: pd.DataFrame) -> Section:
    """Build the section from the rows of all its tables."""
    whole, measured = whole_steps(rows), runs(rows)
    if not measured:
        return Section(TITLE, EXERCISE, nothing_measured(whole))
    return Section(
        TITLE,
        EXERCISE,
        _answer(measured[0]),
        parts=[
            Figure("time_and_memory", _title(measured[0]), time_and_memory(measured)),
            _table(measured),
            not_measured(whole, "cell_name"),
        ],
        method=_method(pd.concat([run.steps for run in measured])),
        actions=_actions(measured),
        problems=_problems(measured),
    )


def _answer(run: Run) -> Markdown:
    takes = [
        say("{way} {words}", way=way, words=_words(run, way))
        for way in (NOTHING, DDP, OURS, TORCHS)
        if way in run.steps.index
    ]
    return say(
        "{size} in {name} on {n} ranks: {takes}.",
        size=run.size,
        name=run.name,
        n=run.world_size,
        takes=Markdown("; ").join(takes),
    )


def _words(run: Run, way: str) -> str:
    """Say what a way takes in time and memory."""
    size, step = run.fullest_bytes(way), run.steps.loc[way]
    takes = f"takes {ms(step['median_ms'])}{' (unstable)' if step['status'] == 'unstable' else ''} a step"
    if size is None:
        return takes
    return f"{takes} and {'peaks at' if way in run.peak_bytes.index else 'holds'} {data_size(size)}"


def _title(run: Run) -> Markdown:
    ours, ddp = run.fullest_bytes(OURS), run.fullest_bytes(DDP)
    if not ours or not ddp:
        return Markdown("Memory of the fullest rank over the time of a step")
    return say("Our FSDP takes {share} of the memory of DDP ({name})", share=ratio(ours / ddp), name=run.name)


def _table(measured: Sequence[Run]) -> Table:
    """Write a way a row, for as many runs as can be read."""
    table = pd.DataFrame([line for run in measured for line in _lines(run)][:MOST_TABLE_ROWS])
    empty = [name for name in table if (table[name] == "–").all()]
    title = "Median step [quartiles]; what the fullest rank holds after it, its peak, and what a rank sends a step:"
    return Table(Markdown(title), table.drop(columns=empty))


def _lines(run: Run) -> list[dict[str, str]]:
    steps = median_cells(run.whole)
    held = run.kinds_bytes.sum(axis=1)
    return [
        {
            "precision": run.name,
            "way": way,
            "step (ms)": steps[way],
            "exposed (ms)": _entry(run.whole["exposed_communication_ms"], way, significant),
            "held": _entry(held, way, data_size),
            "peak": _entry(run.peak_bytes["measured"], way, data_size),
            "predicted": _entry(run.peak_bytes["predicted"], way, data_size),
            "sent": _entry(run.sent_bytes, way, data_size),
        }
        for way in run.whole.index
    ]


def _entry(column: pd.Series, way: str, form: Callable[[float], str]) -> str:
    value = column.get(way)
    return "–" if value is None or pd.isna(value) else form(value)


def _method(timed: pd.DataFrame) -> Markdown:
    return say(
        "AdamW; in bf16 all run under autocast, and the fully sharded ways with bf16 parameters. Exposed: only "
        "collectives ran, in profiled steps. Held: parameters, gradients and optimizer state, tensor by tensor. "
        "{steps} steps are timed, each the slowest rank's, by the host clock.",
        steps=count(timed["n"].max()),
    )


def _actions(measured: Sequence[Run]) -> list[Action]:
    """Advise to shard everything where that clearly saves memory, or where DDP does not fit."""
    for run in measured:
        if OURS not in run.peak_bytes.index:
            continue
        too_large = run.whole["status"].get(DDP) == "oom"
        ddp, ours = run.fullest_bytes(DDP), run.fullest_bytes(OURS)
        if too_large or (ddp and ours and ddp >= WORTH_IT * ours):
            why = say(
                "{size} in {name} on {ranks} ranks: DDP {ddp}; our FSDP {ours}.",
                size=run.size,
                name=run.name,
                ranks=run.world_size,
                ddp="runs out of memory" if too_large else _words(run, DDP),
                ours=_words(run, OURS),
            )
            return [
                Action(3, Markdown("**On several GPUs, shard parameters and gradients where memory is short.**"), why)
            ]
    return []


def _problems(measured: Sequence[Run]) -> list[Problem]:
    answers = {"fsdp": _losses, "fsdp_accounting (a)": _saved, "fsdp_accounting (b)": _gathers}
    said = {name: once_each((run.name, answer(run)) for run in measured) for name, answer in answers.items()}
    return [Problem(name, text) for name, text in said.items() if text]


def _losses(run: Run) -> Markdown:
    losses = run.steps["loss"].reindex([DDP, OURS, TORCHS]).dropna()
    if OURS not in losses or len(losses) < 2:
        return Markdown()
    return say(
        "after as many steps the loss is {losses}; bytes held and sent {fit}.",
        losses=listing([f"{loss:.4g} with {way}" for way, loss in losses.items()]),
        fit="are those predicted" if run.exact else Markdown("**are not those predicted**"),
    )


def _saved(run: Run) -> Markdown:
    ours, before = run.fullest_bytes(OURS), run.fullest_bytes(DDP_SHARDED)
    if ours is None or before is None:
        return Markdown()
    return say(
        "sharding the optimizer's state alone leaves {before} on the fullest rank, sharding everything {ours} "
        "({share}).",
        before=data_size(before),
        ours=data_size(ours),
        share=ratio(before / ours),
    )


def _gathers(run: Run) -> Markdown:
    """Say what of the gathering delays the step, from the captured one."""
    if OURS not in run.captures.index:
        return Markdown()
    captured = run.captures.loc[OURS]
    in_time = captured["gather_exposed_ms"] < 0.05 * captured["span_ms"]
    return say(
        "in a captured step gathers run for {gathers}, and nothing computes for {exposed} of that: they {arrive}.",
        gathers=ms(captured["gather_ms"]),
        exposed=ms(captured["gather_exposed_ms"]),
        arrive="arrive in time" if in_time else "do not all arrive in time",
    )
