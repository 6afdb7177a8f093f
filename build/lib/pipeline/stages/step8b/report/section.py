"""The step8b section: how fast the whole step is, where its time goes, what each fusion buys, whether it is right."""

import itertools

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.outcomes import clear_gain, not_measured, nothing_measured
from pipeline.report.page_parts import Action, Figure, Problem, Section, Table
from pipeline.report.section import count, data_size, listing, ms, number, percent
from pipeline.report.side_by_side import text_cells, whole_steps, without_empty
from pipeline.report.tables import median_cells, significant
from pipeline.stages.step8b.report import figures
from pipeline.stages.step8b.report.facts import KEPT, NAMES, Run, named, runs

TITLE = "How fast is a whole training step of the largest model, and where does its time go?"
EXERCISE = "leaderboard of 2026"  # that of 2025 is of attention alone
JUMP = 0.05  # of the first loss: a rise in one step that is told


def build(rows: pd.DataFrame) -> Section:
    """Build the section from the rows of all its tables; it tells of the cell with the most work a step."""
    whole, measured = whole_steps(named(rows)), runs(rows)
    if not measured:
        return Section(TITLE, EXERCISE, nothing_measured(whole))
    run = measured[0]
    return Section(
        TITLE,
        EXERCISE,
        _answer(run),
        parts=[*_figure(run), _steps_table(run), *_budget_table(run), _correctness(run), not_measured(whole, "name")],
        method=(
            "Whole steps by the host clock, the slowest rank's, each implementation in processes of its own, one after "
            "the other. bf16 weights and gradients from fp32 master shards, AdamW. Torch's parts: FSDP, its attention, "
            "every block checkpointed, the loss in pieces of "
            f"{run.steps['setting_loss_chunk'].iloc[0]:,} tokens. MFU counts causal attention as half of all scores, "
            "unlike the first screen's, and nothing that is computed again."
        ),
        actions=_actions(run),
        problems=[Problem(EXERCISE, _answer(run))],
    )


def _answer(run: Run) -> str:
    ours, *peers = (run.steps.loc[impl] for impl in (run.ours, run.peer) if impl)
    beside = [
        f", {number(ours['median_ms'] / peer['median_ms'])} times the {_words(peer)} with {peer['name']}"
        for peer in peers
    ]
    return f"{run.model}: a step with {ours['name']} takes {_words(ours)}{''.join(beside)}."


def _words(step: pd.Series) -> str:
    """Return the time of a step with its MFU and memory."""
    words = [f"{percent(step['mfu_pct'] / 100)} MFU"] if pd.notna(step["mfu_pct"]) else []
    words += [f"{data_size(step['peak_bytes'])} at the peak"] if pd.notna(step["peak_bytes"]) else []
    words += ["unstable"] if step["status"] == "unstable" else []
    return f"{ms(step['median_ms'])} ({', '.join(words)})"


def _cost(step: pd.Series) -> str:
    """Return the time of a step and its memory."""
    peak = f" and {data_size(step['peak_bytes'])}" if pd.notna(step["peak_bytes"]) else ""
    return ms(step["median_ms"]) + peak


def _figure(run: Run) -> list[Figure]:
    if run.of("fusion").empty:
        return []
    saved = -figures.ladder(run).diff().dropna()
    most = f"; the most, {ms(saved.max())}: {saved.idxmax()}" if saved.max() > 0 else ""
    return [Figure("waterfall", f"What each fusion saves of a step of {run.model}{most}", figures.waterfall(run))]


def _steps_table(run: Run) -> Table:
    impls = run.whole.index
    forms = {
        "MFU": ("mfu_pct", lambda value: percent(value / 100)),
        "GPU idle": ("gpu_idle_pct", lambda value: percent(value / 100)),
        "peak": ("peak_bytes", data_size),
        "first step": ("first_step_ms", ms),
        **{f"layers that keep {what}": (column, count) for column, what in KEPT.items() if run.whole[column].any()},
    }
    cells = {
        "implementation": list(run.whole["name"]),
        "step (ms) [quartiles]": list(median_cells(run.whole)),
        **{title: text_cells(run.whole[column], form, impls) for title, (column, form) in forms.items()},
    }
    return Table(f"{run.model}, a sequence a rank:", without_empty(pd.DataFrame(cells)))


def _budget_table(run: Run) -> list[Table]:
    """Make a table of where the time of ours goes, beside its peer's: one row per kind of work, the longest first."""
    shown = [impl for impl in (run.ours, run.peer) if impl is not None and impl in run.budget_ms]
    if not shown:
        return []
    items = run.budget_ms[shown].fillna(0).sort_values(shown[0], ascending=False)
    table = {}
    for impl in shown:
        table[f"{NAMES[impl]} (ms)"] = items[impl]
        table[f"share of {NAMES[impl]} (%)"] = 100 * items[impl] / items[impl].sum()
    if len(shown) > 1:
        table["saved (ms)"] = items[shown[1]] - items[shown[0]]
    cells = pd.DataFrame(table).map(significant).rename_axis("kind of work").reset_index()
    totals = listing(f"{ms(items[impl].sum())} of {NAMES[impl]}" for impl in shown)
    return [Table(f"Where a profiled step's time goes, {totals}:", cells)]


def _correctness(run: Run) -> str:
    sentences, checks, descents = [], run.of("check"), run.of("descent")
    if {"ours", "bf16_eager"} <= {*checks.index}:
        ours, plain = checks.loc["ours"], checks.loc["bf16_eager"]
        sentences.append(
            f"With {ours['setting_checked_layers']} layers at context "
            f"{min(ours['setting_checked_context'], run.context_length):,} the loss is {ours['loss_error']:.1g} from "
            f"that in fp32, as a share of it, and the gradients {ours['gradient_error']:.2g}; the plain model's in "
            f"bf16 are {plain['loss_error']:.1g} and {plain['gradient_error']:.2g}."
        )
    if run.ours in descents.index:
        descent, others = descents.loc[run.ours], descents.drop(index=run.ours)
        beside = listing(f"{_fallen(other)} with {NAMES[impl]}" for impl, other in others.iterrows())
        sentences.append(
            f"Over {descent['setting_descent_steps']} steps with one batch the loss falls from "
            f"{number(descent['first_loss'])} {_fallen(descent)}{beside and f', {beside}'}."
        )
    return " ".join(sentences)


def _fallen(descent: pd.Series) -> str:
    """Say where the loss ends, and how far it rises in one step on the way, if clearly."""
    pairs = enumerate(itertools.pairwise(descent["losses"]), start=2)
    rise, step, loss = max(((after - before, step, after) for step, (before, after) in pairs), default=(0.0, 0, 0.0))
    jump = f" (at step {step} it jumps to {number(loss)})" if rise > JUMP * descent["first_loss"] else ""
    return f"to {number(descent['last_loss'])}{jump}"


def _actions(run: Run) -> list[Action]:
    """Advise the fused model where it is clearly faster than torch's parts."""
    if not run.ours or not run.peer or clear_gain(run.steps.loc[run.peer], run.steps.loc[run.ours]) is None:
        return []
    before, after = (_cost(run.steps.loc[impl]) for impl in (run.peer, run.ours))
    layers = run.steps.loc[run.ours, list(KEPT)].dropna()
    kept = listing(f"{what} in {count(layers[column])} layers" for column, what in KEPT.items() if layers.get(column))
    why = (
        f"A step of {run.model} takes {before} with every block checkpointed ({NAMES[run.peer]}), and {after} with "
        f"fused kernels{kept and f' that keep {kept}'}; norms, rotations and SwiGLU are computed again."
    )
    return [Action(3, Markdown("**At long contexts, use free memory before you checkpoint whole blocks.**"), why)]
