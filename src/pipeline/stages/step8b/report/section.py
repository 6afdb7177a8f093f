"""The step8b section: how fast the whole step is, where its time goes, what each fusion buys, whether it is right."""

from collections.abc import Callable

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.outcomes import clear_gain, not_measured, nothing_measured
from pipeline.report.page_parts import Action, Figure, Problem, Section, Table, say
from pipeline.report.section import count, data_size, listing, ms, number, percent
from pipeline.report.tables import median_cells, significant
from pipeline.stages.step8b.report import figures
from pipeline.stages.step8b.report.facts import NAMES, Run, runs, whole_steps

TITLE = "How fast is a whole training step of the largest model, and where does its time go?"
EXERCISE = "leaderboard of 2026"  # that of 2025 is of attention alone
WITHOUT_FIGURE = "–"


def build(rows: pd.DataFrame) -> Section:
    """Build the section from the rows of all its tables; it tells of the cell with the most work a step."""
    whole, measured = whole_steps(rows), runs(rows)
    if not measured:
        return Section(TITLE, EXERCISE, nothing_measured(whole))
    run = measured[0]
    return Section(
        TITLE,
        EXERCISE,
        _answer(run),
        parts=[*_figure(run), _steps_table(run), *_budget_table(run), _correctness(run), not_measured(whole, "name")],
        method=_method(run),
        actions=_actions(run),
        problems=[Problem(EXERCISE, _answer(run))],
    )


def _answer(run: Run) -> Markdown:
    told = [run.steps.loc[impl] for impl in (run.ours, run.peer) if impl]
    first = say("{model}: a step with {name} takes {step}", model=_model(run), **_words(told[0]))
    if len(told) < 2:
        return say("{first}.", first=first)
    times = number(told[0]["median_ms"] / told[1]["median_ms"])
    return say("{first}, {times} times the {step} with {name}.", first=first, times=times, **_words(told[1]))


def _words(step: pd.Series) -> dict[str, str]:
    """Return whose a step is, and its time with MFU and memory."""
    words = [f"{percent(step['mfu_pct'] / 100)} MFU"] if pd.notna(step["mfu_pct"]) else []
    words += [f"{data_size(step['peak_bytes'])} at the peak"] if pd.notna(step["peak_bytes"]) else []
    words += ["unstable"] if step["status"] == "unstable" else []
    return {"name": step["name"], "step": f"{ms(step['median_ms'])} ({', '.join(words)})"}


def _model(run: Run) -> Markdown:
    return say(
        "{size} at context {context} on {n} ranks",
        size=run.size,
        context=count(run.context_length),
        n=run.world_size,
    )


def _figure(run: Run) -> list[Figure]:
    if run.fusions.empty:
        return []
    ladder = figures.ladder(run)
    saved = -ladder.diff().dropna()
    title = say("What each fusion takes off a step of {model}", model=_model(run))
    if saved.max() > 0:
        title = say("{title}: {most} the most, {ms}", title=title, most=saved.idxmax(), ms=ms(saved.max()))
    return [Figure("waterfall", title, figures.waterfall(run))]


def _steps_table(run: Run) -> Table:
    lines = [
        {
            "implementation": step["name"],
            "step (ms) [quartiles]": median,
            "MFU": _form(step["mfu_pct"], lambda value: percent(value / 100)),
            "peak": _form(step["peak_bytes"], data_size),
            "first step": _form(step["first_step_ms"], ms),
            "layers that keep products": _form(step["layers_that_keep"], count),
        }
        for (_, step), median in zip(run.whole.iterrows(), median_cells(run.whole), strict=True)
    ]
    table = pd.DataFrame(lines)
    empty = [name for name in table if (table[name] == WITHOUT_FIGURE).all()]
    return Table(say("{model}, a sequence a rank:", model=_model(run)), table.drop(columns=empty))


def _form(value: float, form: Callable[[float], str]) -> str:
    return WITHOUT_FIGURE if pd.isna(value) else form(value)


def _budget_table(run: Run) -> list[Table]:
    """Make a table of where the time of ours goes, beside its peer's: a row a kind of work, the longest first."""
    shown = [impl for impl in (run.ours, run.peer) if impl in run.budget_ms]
    if not shown:
        return []
    items = run.budget_ms[shown].fillna(0).sort_values(shown[0], ascending=False)
    table = pd.DataFrame({"kind of work": items.index})
    for impl in shown:
        table[f"{NAMES[impl]} (ms)"] = items[impl].map(significant).to_numpy()
        shares = 100 * items[impl] / items[impl].sum()
        table[f"of each 100 ms of {NAMES[impl]}"] = shares.map(significant).to_numpy()
    if len(shown) > 1:
        table["saved (ms)"] = (items[shown[1]] - items[shown[0]]).map(significant).to_numpy()
    totals = {impl: ms(items[impl].sum()) for impl in shown}
    words = listing([f"{total} of {NAMES[impl]}" for impl, total in totals.items()])
    return [Table(say("Where a profiled step's time goes, {words}:", words=words), table)]


def _correctness(run: Run) -> Markdown:
    sentences = []
    if {"ours", "bf16_eager"} <= {*run.checks.index}:
        ours, plain = run.checks.loc["ours"], run.checks.loc["bf16_eager"]
        sentences.append(
            say(
                "With {layers} layers at context {context} the loss is {loss} from that in fp32, as a share of it, and "
                "the gradients {gradients}; the plain model's in bf16 are {plain_loss} and {plain_gradients}.",
                layers=count(ours["setting_checked_layers"]),
                context=count(min(ours["setting_checked_context"], run.context_length)),
                loss=f"{ours['loss_error']:.1g}",
                gradients=f"{ours['gradient_error']:.2g}",
                plain_loss=f"{plain['loss_error']:.1g}",
                plain_gradients=f"{plain['gradient_error']:.2g}",
            )
        )
    if run.ours in run.descents.index:
        descent = run.descents.loc[run.ours]
        sentences.append(
            say(
                "Over {steps} steps with one batch the loss falls from {first} to {last}.",
                steps=count(descent["setting_descent_steps"]),
                first=number(descent["first_loss"]),
                last=number(descent["last_loss"]),
            )
        )
    return Markdown(" ").join(sentences)


def _method(run: Run) -> Markdown:
    return say(
        "Whole steps by the host clock, the slowest rank's, each implementation in processes of its own, one after the "
        "other. bf16 weights and gradients from fp32 master shards, AdamW. Torch's parts: FSDP, its attention, every "
        "block checkpointed, the loss in pieces of {chunk} tokens. MFU counts causal attention as half of all scores "
        "and nothing that is computed again.",
        chunk=count(run.steps["setting_loss_chunk"].iloc[0]),
    )


def _actions(run: Run) -> list[Action]:
    """Advise the fused model where it is clearly faster than torch's parts."""
    if not run.ours or not run.peer or clear_gain(run.steps.loc[run.peer], run.steps.loc[run.ours]) is None:
        return []
    what = Markdown("**For long contexts, do not checkpoint whole blocks.**")
    why = say(
        "{model}: {before} become {after} a step where attention's output is kept, and norms, rotations and SwiGLU are"
        " computed again in fused kernels.",
        model=_model(run),
        before=ms(run.steps.loc[run.peer, "median_ms"]),
        after=ms(run.steps.loc[run.ours, "median_ms"]),
    )
    return [Action(3, what, why)]
