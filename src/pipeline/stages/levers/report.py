"""The levers section, and the page's first screen: each model as written and tuned."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import data_size, written
from pipeline.report.frame import alike, in_order, with_figures
from pipeline.report.section import Change, FirstScreen, Section, say
from pipeline.report.table import Table
from pipeline.report.versus import COLUMNS, FASTER, peer_of, shaded, versus
from pipeline.stages.levers.cell import EAGER, EAGER_AGAIN, LEVERS, PRECISION, UNPROVEN, names
from pipeline.stages.levers.report_fp8 import predicted_ratios

AT_MOST = (
    "at most by formula: if the blocks' products took as long as the fastest product in fp8 needs for their FLOPs, "
    "without casts and scales:"
)
ON = ["size", "context_length"]
FIGURES = ["median_ms", "tokens_per_s", "mfu_pct", "peak_bytes", "gpu_idle_pct"]
WHERE = "{size}, batch {setting_batch_size}, context {context_length}"
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
    parameters = [parameter_count(SIZES[row["size"]], row["setting_vocab_size"]) for _, row in rows.iterrows()]
    rows = rows.assign(
        parameters=parameters,
        model=[f"{size} ({_billions(each)})" for size, each in zip(rows["size"], parameters, strict=True)],
        name=rows["levers"].map(words),
        where=written(rows, WHERE),
        is_alone=rows["levers"].isin(LEVERS),
        is_tuned=rows["levers"].map(is_tuning).astype(bool),
        predicted=predicted_ratios(rows, beside["ceilings"]) if "ceilings" in beside else math.nan,
    ).sort_values("parameters", kind="stable", ignore_index=True)
    duel = versus(rows, ON, "levers", [name for name in rows["levers"].unique() if name != EAGER], [EAGER])
    tuned = duel[duel["is_tuned"]]
    tuned = tuned.loc[tuned.groupby(ON, sort=False)["median_ms"].idxmin()]
    combinations = with_figures(rows).groupby(["parameters", *ON]).size()
    most_told = combinations[combinations == combinations.max()].index[-1]  # of several the largest model
    here = dict(zip(ON, most_told[1:], strict=True))
    duel_here, tuned_here = alike(duel, here), alike(tuned, here)
    return Section(
        _answer(duel_here, tuned_here),
        [_gains(duel, tuned), _ladder(alike(rows, here), duel_here, tuned_here)],
        _changes(duel_here, tuned_here),
        _first_screen(with_figures(rows[rows["levers"] == EAGER]), tuned),
    )


def words(levers: str) -> str:
    """Write a combination of levers in words: `SDPA + torch.compile`."""
    return " + ".join(WORDS.get(name, name.replace("_", " ")) for name in (names(levers) or [levers]))


def is_tuning(levers: str) -> bool:
    """Tell whether a combination tunes a step: it does not change what is trained, or only make room."""
    return levers not in (EAGER, EAGER_AGAIN) and not {*names(levers)} & {*UNPROVEN, "checkpointing"}


def _billions(parameters: float) -> str:
    return data_size(parameters).replace(" GB", "B").replace(" MB", "M").replace(" kB", "k")


def _answer(duel: pd.DataFrame, tuned: pd.DataFrame) -> str:
    if tuned.empty:
        return say("Beside the step as written nothing that trains the same was measured.")
    best = say(
        "{where}: with {name} a step takes {median_ms:ms} instead of {median_ms_peer:ms} ({gain}, {verdict}).",
        **tuned.iloc[0],
    )
    alone = duel[duel["is_alone"] & duel["is_tuned"]].nlargest(1, "ratio")
    if alone.empty:
        return best
    return best + say(" Of the levers alone {name} gains most ({gain}, {verdict}).", **alone.iloc[0])


def _gains(duel: pd.DataFrame, tuned: pd.DataFrame) -> Chart:
    """Draw each lever alone and what tunes fastest, of the models that have more than this."""
    shown = duel[duel["is_alone"] | duel.index.isin(tuned.index)]
    shown = shown[shown.groupby("size")["levers"].transform("nunique") > 1]
    shown = in_order(shaded(shown), ["levers"], {"levers": LEVERS})
    short = shown["levers"].str.replace("+", " + ", regex=False)
    shown = shown.assign(name=shown["name"].where(shown["is_alone"], short), text=written(shown, "{ratio:times}"))
    title = (
        "Times as fast as the step as written: each lever alone, and the fastest that train the same; pale: undecided"
    )
    axes, limits = (Axis("ratio", "times as fast as written"), Axis("name")), [Limit(1.0, "")]
    hover = {"interval": "gain", "verdict": "verdict", "step (ms)": "median_ms"}
    return Chart("gains", title, shown, "bar", *axes, "size", label="text", limits=limits, hover=hover)


def _ladder(rows: pd.DataFrame, duel: pd.DataFrame, tuned: pd.DataFrame) -> Table:
    """Write the step as written, each lever alone, the fastest that trains the same and the fastest of all."""
    fastest = [*with_figures(rows).nsmallest(1, "median_ms")["levers"], *tuned["levers"]]
    is_told = rows["is_alone"] | rows["levers"].isin([EAGER, EAGER_AGAIN, *fastest]) | rows["predicted"].notna()
    told = rows[is_told]
    told = told.join(duel.set_index("levers")[list(COLUMNS)], on="levers").assign(peak_gb=told["peak_bytes"] / 1e9)
    caption = (
        f"A step of {rows['where'].iloc[0]}, in bf16: as written, with each lever alone, with the fastest combination "
        "that trains the same, with the fastest of all:"
    )
    if told["predicted"].notna().any():
        caption += " " + AT_MOST
    shown = "name median_ms gain verdict gpu_idle_pct launches peak_gb mfu_pct repeats loss"
    heads = {"name": "with", "peak_gb": "peak GB", "loss": "loss after 20 steps", "predicted": "at most by formula"}
    return Table.of("ladder", caption, told, f"{shown} predicted:times", only_filled=True, heads=heads)


def _changes(duel: pd.DataFrame, tuned: pd.DataFrame) -> list[Change]:
    """Return each lever alone, of alternatives the faster, and the fastest tuned combination."""
    slower = duel[duel["levers"].isin(ALTERNATIVES)].sort_values("median_ms")["levers"].iloc[1:]
    alone = duel[duel["is_alone"] & ~duel["levers"].isin(slower)]
    return [
        Change.between(
            row["name"] + (" (changes training)" if row["levers"] in UNPROVEN else ""),
            # Another host changes what rests on a step that waits for it.
            row["where"] + (", limited by the host" if "host" in (row["limited_by"], row["limited_by_peer"]) else ""),
            peer_of(row),
            row,
        )
        for _, row in pd.concat([tuned[~tuned["is_alone"]], alone]).iterrows()
    ]


def _first_screen(plain: pd.DataFrame, tuned: pd.DataFrame) -> FirstScreen | None:
    """Put each model's step as written beside its fastest tuned one; None where no step as written has figures."""
    if plain.empty:
        return None
    of_tuned = tuned[[*ON, "levers", "name", "status", "limited_by", *COLUMNS, *FIGURES]]
    both = plain.merge(of_tuned, "left", ON, suffixes=("", "_tuned"))
    ways = [*both["name_tuned"].dropna().unique()]
    tuned_with = ways[0] if len(ways) == 1 else "the fastest combination that trains the same"
    both = both.assign(
        mfu_from_to=written(both, "{mfu_pct:percent} → {mfu_pct_tuned:percent}"),
        peak_gb=written(both, "{peak_bytes:gb} → {peak_bytes_tuned:gb}"),
        tuned_with=both["name_tuned"] if len(ways) > 1 else None,
    )
    first, contexts = plain.iloc[0], " and ".join(map(str, sorted(plain["context_length"].unique())))
    caption = (
        f"Training steps, bf16 autocast, batch {first['setting_batch_size']:.0f}, context {contexts}. As written: "
        f"plain PyTorch. Tuned: {tuned_with}. MFU: of {first['peak_tflops_per_s']:,.3g} TFLOP/s "
        f"({first['peak_source']}). Names are the course's, with the "
        "parameters counted here in brackets. a → b: as written → tuned."
    )
    limit = "limited_by" if both["limited_by"].nunique() > 1 else ""
    shown = f"model tokens_per_s tokens_per_s_tuned gain verdict mfu_from_to peak_gb {limit} tuned_with"
    heads = {"tokens_per_s": "as written: tokens/s", "tokens_per_s_tuned": "tuned: tokens/s", "mfu_from_to": "MFU"}
    heads |= {"peak_gb": "peak GB", "limited_by": "as written, limited by"}
    table = Table.of("models", caption, both, shown, only_filled=True, heads=heads)
    return FirstScreen(_line(both), _models(plain, tuned), table, [_summary(row) for _, row in both.iterrows()])


def _line(both: pd.DataFrame) -> str:
    """Say what the largest model reaches whose two steps are stable and not limited by the host."""
    sure = both[(both["verdict"] == FASTER) & ~both[["limited_by", "limited_by_tuned"]].eq("host").any(axis=1)]
    if sure.empty:
        return say(
            "{size} as written trains {tokens_per_s:count} tokens/s. What tuning gains is uncertain, see the verdicts.",
            **both.iloc[-1],
        )
    return say(
        "Tuned, {size} trains {tokens_per_s_tuned:count} tokens/s ({mfu_pct_tuned:percent} MFU), {ratio:times} as fast "
        "as in plain PyTorch.",
        **sure.iloc[-1],
    )


def _models(plain: pd.DataFrame, tuned: pd.DataFrame) -> Chart:
    bars = pd.concat([plain.assign(kind="as written"), tuned.assign(kind="tuned")])
    bars = bars.assign(rate=written(bars, "{tokens_per_s:count} tokens/s"))
    axes = Axis("mfu_pct", f"MFU in % of {plain['peak_tflops_per_s'].iloc[0]:,.3g} TFLOP/s"), Axis("size")
    title, hover = "Training in bf16, as written and tuned", {"tokens/s": "rate", "with": "name"}
    return Chart("models", title, bars, "bar", *axes, "kind", label="rate", hover=hover)


def _summary(row: pd.Series) -> dict[str, Any]:
    """Return both steps of a model as numbers, as summary.schema.json declares them."""

    def step(suffix: str) -> dict[str, Any] | None:
        values = ((name, row[f"{name}{suffix}"]) for name in ("status", *FIGURES))
        known = {name: None if pd.isna(value) else value for name, value in values}
        return {"with": row[f"levers{suffix}"], **known} if known["status"] else None

    setting = {"context_length": int(row["context_length"]), "batch_size": int(row["setting_batch_size"])}
    return {"size": row["size"], "precision": PRECISION, **setting, "eager": step(""), "tuned": step("_tuned")}
