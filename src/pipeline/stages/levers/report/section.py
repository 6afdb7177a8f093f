"""The levers section: what each optimization buys, alone and together."""

import pandas as pd

from pipeline.cells.rows import WITH_FIGURES
from pipeline.report.markup import Markdown
from pipeline.report.outcomes import clear_gain, not_measured, nothing_measured
from pipeline.report.page_parts import MOST_TABLE_ROWS, Action, Figure, Section, Table, say
from pipeline.report.section import count, data_size, listing, ms, number, percent, ratio
from pipeline.report.table_rows import ok
from pipeline.report.tables import significant, with_outcomes
from pipeline.stages.levers.cell import EAGER
from pipeline.stages.levers.report import figures
from pipeline.stages.levers.report.selection import (
    alone,
    eager,
    fastest,
    ladder,
    largest,
    models,
    ordered,
    with_gain,
)

TITLE = "What does each optimization buy, alone and together?"
LOSS_DIGITS = 4
WORDS = {
    "fused": "fused AdamW",
    "flash": "our flash attention",
    "sdpa": "SDPA",
    "compile": "torch.compile",
    "graph": "a CUDA graph",
    "checkpointing": "checkpoints",
}
TOPICS = {"fused": "optimizer", "compile": "compile", "graph": "graph"}  # of other stages' actions
METHOD = Markdown(
    "bf16 autocast, whole steps by the host clock, medians; loss of the last checked step. Weights and batch are the"
    " same for all: a lever that moves the loss by more than rounding does is wrong and has no times."
)


def build(rows: pd.DataFrame) -> Section:
    """Return the section of the levers stage, from all its rows."""
    rows = ordered(rows)
    if not models(rows):
        return Section(TITLE, "", nothing_measured(rows) if ok(rows).empty else _not_compared(rows))
    model = largest(rows)
    return Section(
        TITLE,
        "",
        _answer(model),
        parts=[
            Figure("gains", _figure_title(rows), figures.gains(rows)),
            _table(model),
            not_measured(rows, "levers"),
        ],
        method=METHOD,
        actions=_actions(model),
    )


def _not_compared(rows: pd.DataFrame) -> Markdown:
    return say("No lever was measured beside the eager step. {why}", why=not_measured(rows, "levers"))


def _name(row: pd.Series) -> str:
    return f"{row['size']} at context {int(row['context_length'])}"


def _levers(row: pd.Series) -> str:
    return str(row["levers"]).replace("+", " + ")


def _answer(model: pd.DataFrame) -> Markdown:
    """Name what buys most alone, and what the fastest combination takes."""
    base, top = eager(model), fastest(model)
    words = [Markdown("no lever alone shortens a step.")]
    single = fastest(alone(model)) if len(ok(alone(model))) else base
    if single["median_ms"] < base["median_ms"]:
        gain = ratio(base["median_ms"] / single["median_ms"])
        words = [say("alone, {levers} gains most, {gain}.", levers=_levers(single), gain=gain)]
    if top["levers"] not in (EAGER, single["levers"]):
        words.append(_change("Together, {levers} gain most: {before} → {after}{more}.", base, top))
    return say("{name}: {words}", name=_name(base), words=Markdown(" ").join(words))


def _change(sentence: str, base: pd.Series, other: pd.Series) -> Markdown:
    forms = {"peak_bytes": data_size, "tokens_per_j": lambda value: f"{number(value)} tokens/J"}
    both = {name: (base.get(name), other.get(name)) for name in forms}
    more = [
        ", " + " → ".join(map(forms[name], values))
        for name, values in both.items()
        if pd.notna(pd.Series(values)).all()
    ]
    return say(
        sentence,
        levers=_levers(other),
        before=ms(base["median_ms"]),
        after=ms(other["median_ms"]),
        more="".join(more),
    )


def _figure_title(rows: pd.DataFrame) -> Markdown:
    """Say how much faster the fastest combination of each model is."""
    found = [fastest(with_gain(model)) for model in models(rows)]
    gains = [f"{_name(row)} {ratio(row['gain'])}" for row in found]
    return say("The fastest combination over the eager step: {gains}", gains=listing(gains))


def _table(model: pd.DataFrame) -> Table:
    """Write the eager step, each lever alone, and those that join one after the other."""
    steps, single = ladder(with_gain(model)), alone(with_gain(model))
    shown = pd.concat([steps.head(1), single.head(MOST_TABLE_ROWS - len(steps)), steps.iloc[1:]])
    shown = shown[shown["status"] != "skipped"].drop_duplicates("levers").reset_index(drop=True)
    table = pd.DataFrame([{"with": _levers(row), **_figures(row)} for _, row in shown.iterrows()])
    table["ms (× eager)"] = with_outcomes(table["ms (× eager)"], shown.assign(reason=None))
    title = say("A step of {name}; in brackets how many times as fast as eager:", name=_name(shown.iloc[0]))
    return Table(title, table.loc[:, (table != "").any()])


def _figures(row: pd.Series) -> dict[str, str]:
    """Write a row's figures, empty where it has none."""
    forms = {
        "ms (× eager)": ("median_ms", lambda value: f"{significant(value)} ({ratio(row['gain'])})"),
        "GPU idle": ("gpu_idle_pct", lambda value: percent(value / 100)),
        "launches": ("launches", count),
        "peak GB": ("peak_bytes", lambda value: significant(value / 1e9)),
        "tokens/s (MFU)": ("tokens_per_s", lambda value: f"{count(value)} ({percent(row['mfu_pct'] / 100)})"),
        "tokens/J": ("tokens_per_j", number),
        "loss": ("loss", lambda value: significant(value, LOSS_DIGITS)),
    }
    measured = row["status"] in WITH_FIGURES
    known = {title: measured and pd.notna(row.get(column)) for title, (column, _) in forms.items()}
    return {title: form(row[column]) if known[title] else "" for title, (column, form) in forms.items()}


def _actions(model: pd.DataFrame) -> list[Action]:
    """Advise the fastest combination, where it is clearly faster than the eager step.

    Without weights in bf16: a few steps do not show what many small updates lose that such weights round away.
    """
    in_fp32 = model[~model["levers"].str.contains("bf16_weights", regex=False)]
    base, top = eager(model), fastest(in_fp32)
    if clear_gain(base, top) is None:
        return []
    names = top["levers"].split("+")
    single = ok(alone(with_gain(model))).set_index("levers")["gain"]
    gains = [f"{WORDS[name]} {ratio(single[name])}" for name in names if name in single]
    why = say(
        "A step of {name} is {gain} as fast: {change}.{alone}",
        name=_name(base),
        change=_change("{before} → {after}{more}", base, top),
        gain=ratio(base["median_ms"] / top["median_ms"]),
        alone=f" Alone: {', '.join(gains)}." if len(names) > 1 and gains else "",
    )
    what = say("**Train with {levers}.**", levers=listing(WORDS[name] for name in names))
    return [Action(1, what, why, covers=[TOPICS[name] for name in names if name in TOPICS])]
