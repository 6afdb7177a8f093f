"""The levers section, and the page's first screen: each model as written and tuned."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import (
    Form,
    count,
    data_size,
    gb,
    interval,
    intervals,
    ms,
    number,
    percent,
    significant,
    text,
    times,
)
from pipeline.report.frame import with_figures
from pipeline.report.section import Change, FirstScreen, Part, Section, say
from pipeline.report.table import Columns, Table, filled
from pipeline.report.versus import COLUMNS, FASTER, versus
from pipeline.stages.levers.cell import EAGER, EAGER_AGAIN, LEVERS, UNPROVEN, names

ON = ["size", "context_length"]
# Change what is trained, or only make room: they tune no model.
NO_TUNING = (*UNPROVEN, "checkpointing")
PEAK_WORDS = {"datasheet": "data sheet", "measured": "measured"}
# Two ways to the same end: of these the faster is a change to make.
ALTERNATIVES = ("flash", "sdpa")
WORDS = {
    "eager": "as written",
    "eager_again": "as written, once more",
    "fused": "fused AdamW",
    "flash": "our flash attention",
    "sdpa": "SDPA",
    "muon": "Muon",
    "blocks": "our fused blocks",
    "compile": "torch.compile",
    "fp8": "fp8 products",
    "fp8_rowwise": "fp8 products, scaled by row",
    "bf16_moments": "bf16 moments",
    "graph": "CUDA graph",
    "bf16_weights": "bf16 weights",
    "checkpointing": "checkpoints",
}


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the levers stage, with the first screen."""
    rows = rows.assign(
        name=rows["levers"].map(words),
        parameters=[parameter_count(SIZES[row["size"]], row["setting_vocab_size"]) for _, row in rows.iterrows()],
    ).sort_values("parameters", kind="stable", ignore_index=True)
    duel = versus(rows, ON, "levers", [name for name in rows["levers"].unique() if name != EAGER], [EAGER])
    largest = _most_told(rows)
    tuned = duel[(duel["size"] == largest) & duel["levers"].map(is_tuning).astype(bool)]
    parts: list[Part] = [_gains(duel), _table(rows, duel, largest)]
    return Section(_answer(tuned), parts, _changes(duel, largest), _models(rows, duel))


def _most_told(rows: pd.DataFrame) -> str:
    """Return the model with most combinations, of several the largest."""
    counts = with_figures(rows).groupby(["parameters", "size"]).size()
    return str(counts[counts == counts.max()].index[-1][1])


def _gains(duel: pd.DataFrame) -> Chart:
    """Draw each lever alone and what tunes fastest, of the models that have more than this."""
    tuned = duel[duel["levers"].map(is_tuning).astype(bool)]
    fastest = tuned.groupby("size")["ratio"].transform("max") == tuned["ratio"]
    shown = duel[duel["levers"].isin(LEVERS) | duel["levers"].isin(tuned.loc[fastest, "levers"])]
    shown = shown[shown.groupby("size")["levers"].transform("nunique") > 1]
    order = {name: place for place, name in enumerate(LEVERS)}
    shown = shown.sort_values("levers", key=lambda each: each.map(order).fillna(len(order)), kind="stable")
    return Chart(
        "gains",
        "Times as fast as the step as written: each lever alone, and the fastest that train the same",
        shown.assign(
            name=shown["name"].where(
                shown["levers"].isin(LEVERS), shown["levers"].str.replace("+", " + ", regex=False)
            ),
            status=shown["verdict"].map({"undecided": "unstable"}).fillna("ok"),
            text=shown["ratio"].map(times),
            gain=intervals(shown),
        ),
        "bar",
        Axis("ratio", "times as fast as written"),
        Axis("name"),
        "size",
        label="text",
        limits=[Limit(1.0, "")],
        hover={"interval": "gain", "verdict": "verdict", "step (ms)": "median_ms"},
    )


def words(levers: str) -> str:
    """Write a combination of levers in words: `SDPA + torch.compile`."""
    return " + ".join(WORDS.get(name, name.replace("_", " ")) for name in (names(levers) or [levers]))


def _answer(tuned: pd.DataFrame) -> str:
    """Tell what trains the same fastest, and which lever gains most alone."""
    if tuned.empty:
        return say("Beside the step as written nothing that trains the same was measured.")
    best = tuned.loc[tuned["ratio"].idxmax()]
    singles = tuned[tuned["levers"].isin(LEVERS)]
    alone = singles.loc[singles["ratio"].idxmax()] if len(singles) else best
    return say(
        "{size}, batch {batch}, context {context}: with {best} a step takes {after} instead of {before} ({gain}, "
        "{verdict}). Of the levers alone {alone} gains most ({alone_gain}, {alone_verdict}).",
        size=best["size"],
        batch=count(best["setting_batch_size"]),
        context=count(best["context_length"]),
        best=best["name"],
        after=ms(best["median_ms"]),
        before=ms(best["median_ms_peer"]),
        gain=interval(best),
        verdict=best["verdict"],
        alone=alone["name"],
        alone_gain=interval(alone),
        alone_verdict=alone["verdict"],
    )


def _table(rows: pd.DataFrame, duel: pd.DataFrame, size: str) -> Table:
    """Write the steps of one model that tell most beside the step as written, the order of the cell kept."""
    here = rows[
        (rows["size"] == size) & (rows["context_length"] == rows.loc[rows["size"] == size, "context_length"].max())
    ]
    judged = duel.set_index([*ON, "levers"])[["ratio", "low", "high", "verdict"]]
    here = here.join(judged, on=[*ON, "levers"])
    here = here.assign(gain=intervals(here))
    here = here[_is_told(here)]
    caption = (
        f"A step of {size} at context {int(here['context_length'].iloc[0])} in bf16: as written, with each lever "
        "alone, with the fastest combination that trains the same, with the fastest of all:"
    )
    columns: Columns = [
        ("with", "name", text),
        ("ms", "median_ms", number),
        ("times as fast (interval)", "gain", text),
        ("verdict", "verdict", text),
        ("GPU idle", "gpu_idle_pct", percent),
        ("launches", "launches", count),
        ("peak GB", "peak_bytes", gb),
        ("MFU", "mfu_pct", percent),
        ("repeats", "repeats", count),
        ("loss after 20 steps", "loss", lambda loss: significant(loss, 4)),
    ]
    return Table("ladder", caption, here, columns, all_rows=True)


def _is_told(rows: pd.DataFrame) -> pd.Series:
    """Choose the step as written, single levers, the fastest that trains the same and the fastest of all."""
    timed = with_figures(rows)
    tuned = timed[timed["levers"].map(is_tuning).astype(bool)]
    fastest = [*timed.nsmallest(1, "median_ms")["levers"], *tuned.nsmallest(1, "median_ms")["levers"]]
    return rows["levers"].isin([EAGER, EAGER_AGAIN, *LEVERS, *fastest])


def _models(rows: pd.DataFrame, duel: pd.DataFrame) -> FirstScreen | None:
    """Put each model's step as written beside its fastest tuned one; None where no step as written has figures."""
    plain = with_figures(rows[rows["levers"] == EAGER])
    if plain.empty:
        return None
    tuned = duel[duel["levers"].map(is_tuning).astype(bool)]
    tuned = tuned.loc[tuned.groupby(ON, sort=False)["median_ms"].idxmin()]
    both = plain.merge(
        tuned[[*ON, "levers", "name", "status", "limited_by", *COLUMNS, *FIGURES]],
        "left",
        ON,
        suffixes=("", "_tuned"),
    )
    both = both.assign(
        model=[f"{row['size']} ({_parameters(row)})" for _, row in both.iterrows()],
        gain=intervals(both),
        mfu_from_to=[_from_to(row, "mfu_pct", percent) for _, row in both.iterrows()],
        memory=[_from_to(row, "peak_bytes", gb) for _, row in both.iterrows()],
        with_tuned=both["levers_tuned"].map(words, na_action="ignore"),
    )
    ways = both["with_tuned"].dropna().unique()
    columns: Columns = [
        ("model", "model", text),
        ("as written: tokens/s", "tokens_per_s", count),
        ("tuned: tokens/s", "tokens_per_s_tuned", count),
        ("times as fast (interval)", "gain", text),
        ("verdict", "verdict", text),
        ("MFU", "mfu_from_to", text),
        ("peak GB", "memory", text),
        ("as written, limited by", "limited_by", text),
        *([("tuned with", "with_tuned", text)] if len(ways) > 1 else []),
    ]
    caption = _setting(plain, str(ways[0]) if len(ways) == 1 else "the fastest combination that trains the same")
    table = Table("models", caption, both, filled(both, columns), all_rows=True)
    return FirstScreen(_line(both, plain), _chart(both, plain), table, [_summary(row) for _, row in both.iterrows()])


def _from_to(row: pd.Series, column: str, form: Form) -> str | None:
    """Write a figure of both steps: `24% → 46%`."""
    pair = row[column], row[f"{column}_tuned"]
    return None if any(pd.isna(each) for each in pair) else " → ".join(map(form, pair))


FIGURES = ["median_ms", "tokens_per_s", "mfu_pct", "peak_bytes", "gpu_idle_pct"]


def is_tuning(levers: str) -> bool:
    """Tell whether a combination tunes a step: it trains what the step as written trains, in as much memory."""
    return levers not in (EAGER, EAGER_AGAIN) and not set(names(levers)) & set(NO_TUNING)


def _parameters(row: pd.Series) -> str:
    return data_size(row["parameters"]).replace(" GB", "B").replace(" MB", "M").replace(" kB", "k")


def _setting(plain: pd.DataFrame, tuned: str) -> str:
    first = plain.iloc[0]
    contexts = " and ".join(f"{each:.0f}" for each in sorted(plain["context_length"].unique()))
    return (
        f"Training steps, bf16 autocast, batch {first['setting_batch_size']:.0f}, context {contexts}. As written: "
        f"plain PyTorch. Tuned: {tuned}. MFU: of {first['peak_tflops_per_s']:,.3g} TFLOP/s "
        f"({PEAK_WORDS.get(first['peak_source'], first['peak_source'])}). Arrows: from as written to tuned."
    )


def _line(both: pd.DataFrame, plain: pd.DataFrame) -> str:
    """Say what the largest model reaches whose two steps are stable and not limited by the host."""
    limited = both[["limited_by", "limited_by_tuned"]].eq("host").any(axis=1)
    sure = both[(both["verdict"] == FASTER) & ~limited]
    if sure.empty:
        last = both.iloc[-1]
        rates = (last[f"tokens_per_s{suffix}"] for suffix in ("", "_tuned"))
        before, after = ("not measured" if pd.isna(rate) else f"{count(rate)} tokens/s" for rate in rates)
        return say(
            "{model} as written: {before}; tuned: {after}. What tuning gains is uncertain here, see the verdicts.",
            model=last["size"],
            before=before,
            after=after,
        )
    best = sure.iloc[-1]
    return say(
        "Tuned, {model} trains {after} tokens/s at {mfu} MFU, {gain} times as fast as written.",
        model=best["size"],
        after=count(best["tokens_per_s_tuned"]),
        mfu=percent(best["mfu_pct_tuned"]),
        gain=f"{best['ratio']:.2f}",
    )


def _chart(both: pd.DataFrame, plain: pd.DataFrame) -> Chart:
    pairs = [("as written", ""), ("tuned", "_tuned")]
    bars = [
        both.assign(
            kind=kind,
            mfu=both[f"mfu_pct{suffix}"],
            rate=both[f"tokens_per_s{suffix}"].map(lambda rate: f"{rate:,.0f} tokens/s", na_action="ignore"),
            status=both[f"status{suffix}"],
            place=number_,
        )
        for number_, (kind, suffix) in enumerate(pairs)
    ]
    rows = pd.concat(bars).sort_values("place", kind="stable") if bars else plain
    return Chart(
        "models",
        "Training in bf16, as written and tuned",
        rows,
        "bar",
        Axis("mfu", f"MFU in % of {plain['peak_tflops_per_s'].iloc[0]:,.3g} TFLOP/s"),
        Axis("size"),
        "kind",
        label="rate",
        hover={"tokens/s": "rate", "tuned with": "name_tuned"},
    )


def _summary(row: pd.Series) -> dict[str, Any]:
    def step(suffix: str) -> dict[str, Any] | None:
        if pd.isna(row[f"median_ms{suffix}"]):
            return None
        found = {name: row[f"{name}{suffix}"] for name in ("status", *FIGURES)}
        return {
            "with": row[f"levers{suffix}"],
            **{name: None if pd.isna(value) else value for name, value in found.items()},
        }

    setting = {"context_length": int(row["context_length"]), "batch_size": int(row["setting_batch_size"])}
    return {"size": row["size"], "precision": "bf16", **setting, "eager": step(""), "tuned": step("_tuned")}


def _changes(duel: pd.DataFrame, size: str) -> list[Change]:
    """Return each lever alone, of alternatives the faster, and the fastest tuned combination, of one model."""
    here = duel[(duel["size"] == size) & duel["levers"].isin(LEVERS)]
    slower = here[here["levers"].isin(ALTERNATIVES)].sort_values("median_ms")["levers"].iloc[1:]
    here = here[~here["levers"].isin(slower)]
    tuned = duel[(duel["size"] == size) & duel["levers"].map(is_tuning).astype(bool)]
    tuned = tuned[tuned["levers"].str.contains("+", regex=False)].nsmallest(1, "median_ms")
    return [
        Change(
            row["name"] + (" (changes training)" if row["levers"] in UNPROVEN else ""),
            f"{size}, batch {row['setting_batch_size']:.0f}, context {row['context_length']:.0f}{_host_limited(row)}",
            _cost(row, "_peer"),
            _cost(row, ""),
            row.to_dict(),
        )
        for _, row in pd.concat([tuned, here]).iterrows()
    ]


def _host_limited(row: pd.Series) -> str:
    """Mark what rests on a step that waits for its host: another host changes it."""
    return ", limited by the host" if "host" in (row["limited_by"], row["limited_by_peer"]) else ""


def _cost(row: pd.Series, suffix: str) -> str:
    peak = row[f"peak_bytes{suffix}"]
    return ms(row[f"median_ms{suffix}"]) + (f", {data_size(peak)}" if pd.notna(peak) else "")
