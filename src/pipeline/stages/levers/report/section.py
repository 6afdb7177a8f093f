"""The levers section: what each optimization buys, alone and together."""

from collections.abc import Sequence

import pandas as pd

from pipeline.cells.rows import WITH_FIGURES
from pipeline.report.lever_words import WORDS, joined, listed
from pipeline.report.outcomes import clear_gain, not_measured, nothing_measured
from pipeline.report.page_parts import MOST_TABLE_ROWS, Action, Figure, Section, Table, say
from pipeline.report.section import count, data_size, listing, ms, number, percent, ratio
from pipeline.report.table_rows import ok
from pipeline.report.tables import significant, with_outcomes
from pipeline.stages.levers.cell import EAGER, EAGER_AGAIN
from pipeline.stages.levers.report import figures
from pipeline.stages.levers.report.selection import (
    advised,
    again,
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


def build(rows: pd.DataFrame) -> Section:
    """Return the section of the levers stage, from all its rows."""
    rows = ordered(rows)
    found = models(rows)
    missing = not_measured(
        rows.assign(what=[f"{row['size']} with {listed(row['levers'])}" for _, row in rows.iterrows()]), "what"
    )
    if not found:
        nothing = "No lever was measured beside the eager step. " + missing
        return Section(TITLE, "", nothing_measured(rows) if ok(rows).empty else nothing)
    model = largest(rows)
    top = advised(model)["levers"]
    return Section(
        TITLE,
        "",
        _answer(model),
        parts=[
            Figure("gains", _figure_title(found, top), figures.gains(rows, top)),
            _table(model, again(rows, model)),
            missing,
        ],
        method=_method(rows),
        actions=_actions(model, rows),
    )


def _method(rows: pd.DataFrame) -> str:
    words = (
        "bf16 autocast, whole steps by the host clock, medians. Launches: kernels, copies and fills, also those of a "
        "graph. All start from the same weights and train on the same batch. The loss is that of step "
        f"{rows['setting_checked_steps'].max()}: a combination is wrong, and has no times, if it is off by more than "
        f"{percent(rows['setting_loss_tolerance'].max())} of what eager's has fallen by till then."
    )
    if (rows["levers"] == EAGER_AGAIN).any():
        words += " Each is measured in a process of its own, in turn; eager again, at the end, shows the drift."
    if rows["levers"].str.contains("bf16_weights", regex=False).any():
        words += (
            " Weights in bf16 round small updates away and may differ: after so few steps on one batch of random tokens"
            " the loss says nothing of their quality."
        )
    return words


def _name(row: pd.Series) -> str:
    return f"{row['size']} at context {int(row['context_length'])}"


def _figure_title(found: Sequence[pd.DataFrame], levers: str) -> str:
    """List what one combination gains for each model that has it; the context once where it is the same for all."""
    if levers == EAGER:
        return "No combination is faster than the eager step"
    having = [ok(with_gain(model)) for model in found if levers in set(ok(model)["levers"])]
    pairs = [(eager(model), model[model["levers"] == levers].iloc[0]) for model in having]
    contexts = {int(base["context_length"]) for base, _ in pairs}
    same = f" at context {contexts.pop()}" if len(contexts) == 1 else ""
    gains = [
        f"{base['size'] if same else _name(base)} {ratio(row['gain'])}"
        + (" (unstable)" if "unstable" in (base["status"], row["status"]) else "")
        for base, row in pairs
    ]
    by_host = [base["size"] for base, _ in pairs if base.get("limited_by") == "host"]
    host = f"; the host limits the eager step of {listing(by_host)}" if by_host else ""
    return f"Gain of {listed(levers)} over the eager step{same}: {listing(gains)}{host}"


def _answer(model: pd.DataFrame) -> str:
    """Name what buys most alone, and what the fastest combination takes; of stable times."""
    base, stable = eager(model), model[model["status"] == "ok"]
    if base["status"] == "unstable":
        words = f"the eager step, {ms(base['median_ms'])}, is unstable, so what each lever gains is not known"
        if len(stable):
            best = fastest(stable)
            words += f"; the fastest that is stable, {listed(best['levers'])}, takes {ms(best['median_ms'])}"
        return f"{_name(base)}: {words}."
    top, singles = fastest(stable), alone(stable)
    single = fastest(singles) if len(singles) else base
    sentences: list[str] = []
    if single["median_ms"] < base["median_ms"]:
        gain = ratio(base["median_ms"] / single["median_ms"])
        sentences.append(f"alone, {listed(single['levers'])} gains most, {gain}.")
    elif len(singles):
        among = " whose time is stable" if (alone(model)["status"] == "unstable").any() else ""
        sentences.append(f"no lever alone{among} shortens a step.")
    if top["levers"] not in (EAGER, single["levers"]):
        clear = top["q3_ms"] < single["q1_ms"]
        together = "gain most" if clear else "gain hardly more"
        start = "Together, " if sentences else "together, "
        if alone(model).empty:
            together = "(none of them measured alone) gain"
        sentences.append(f"{start}{listed(top['levers'])} {together}: {_change(base, top)}.")
    return f"{_name(base)}: {' '.join(sentences) or 'nothing shortens a step.'}"


def _change(base: pd.Series, other: pd.Series) -> str:
    forms = {"median_ms": ms, "peak_bytes": data_size, "tokens_per_j": lambda value: f"{number(value)} tokens/J"}
    both = {name: [row.get(name) for row in (base, other)] for name in forms}
    written = [[*map(forms[name], pair)] for name, pair in both.items() if pd.notna(pair).all()]
    return ", ".join(f"{before} → {after}" if before != after else f"{after} as before" for before, after in written)


def _table(model: pd.DataFrame, second: pd.DataFrame) -> Table:
    """Write the eager step, each lever alone, those that join one after the other, and eager's `second` turn."""
    gained = with_gain(model)
    steps, single = ladder(gained), alone(gained)
    together = ~steps["levers"].isin([EAGER, *single["levers"]])
    others = single[~single["levers"].isin(steps["levers"])].head(MOST_TABLE_ROWS - len(steps) - len(second))
    second = second.assign(gain=eager(model)["median_ms"] / second["median_ms"])
    shown = pd.concat([steps[~together], others, steps[together], second])
    shown = shown[shown["status"] != "skipped"].reset_index(drop=True)
    table = pd.DataFrame([{"with": joined(row["levers"]), **_figures(row)} for _, row in shown.iterrows()])
    table["ms (× eager)"] = with_outcomes(table["ms (× eager)"], shown.assign(reason=None))
    title = f"A step of {_name(shown.iloc[0])}; in brackets how many times as fast as eager:"
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
    known = {name: row["status"] in WITH_FIGURES and pd.notna(row.get(column)) for name, (column, _) in forms.items()}
    return {name: form(row[column]) if known[name] else "" for name, (column, form) in forms.items()}


def _actions(model: pd.DataFrame, rows: pd.DataFrame) -> list[Action]:
    """Advise the fastest combination, where it is clearly faster than the eager step.

    Of all rows, those of other models tell where the same combination is wrong.
    """
    base, top = eager(model), advised(model)
    if clear_gain(base, top) is None:
        return []
    names = top["levers"].split("+")
    gain = ratio(base["median_ms"] / top["median_ms"])
    why = f"A step of {_name(base)} (bf16, batch {base['setting_batch_size']}) is {gain} as fast: {_change(base, top)}."
    why += _parts_of(names, ok(with_gain(model)).set_index("levers")["gain"])
    wrong = rows[(rows["levers"] == top["levers"]) & (rows["status"] == "wrong")]
    why += f" For {listing(wrong['size'].unique())} its loss fails the check." if len(wrong) else ""
    what = say("**Train with {levers}.**", levers=listed(top["levers"]))
    return [Action(1, what, why, covers=[name for name in names if name == "compile"])]


def _parts_of(names: Sequence[str], gains: pd.Series) -> str:
    """Say what each lever of a combination gains alone; of one that gains nothing, what it adds to the others.

    gains: over the eager step, by combination.
    """
    if len(names) < 2:
        return ""
    alone = [f"{WORDS[name]} {ratio(gains[name])}" for name in names if gains.get(name, 0) > 1]
    others = {name: "+".join(other for other in names if other != name) for name in names if gains.get(name, 2) <= 1}
    added = [
        f"{WORDS[name]} {ratio(gains['+'.join(names)] / gains[rest])}" for name, rest in others.items() if rest in gains
    ]
    told = {"alone": alone, "what gains nothing alone, on top of the others": added}
    words = "; ".join(f"{how}: {', '.join(parts)}" for how, parts in told.items() if parts)
    return f" {words[0].upper()}{words[1:]}." if words else ""
