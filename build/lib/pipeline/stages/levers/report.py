"""The levers section, and the page's first screen: each model as written and tuned."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import count, data_size, gb, interval, ms, number, percent, significant, text, times
from pipeline.report.frame import with_figures
from pipeline.report.section import Change, FirstScreen, Section, say
from pipeline.report.table import Table
from pipeline.report.versus import versus
from pipeline.stages.levers.cell import EAGER, EAGER_AGAIN, LEVERS, names

ON = ["size", "context_length"]
# Change what is trained, or only make room: they tune no model.
NO_TUNING = ("bf16_weights", "checkpointing", "fp8")
WORDS = {
    "eager": "as written",
    "eager_again": "as written, once more",
    "fused": "fused AdamW",
    "flash": "our flash attention",
    "sdpa": "SDPA",
    "compile": "compile",
    "graph": "graph",
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
    models = _models(rows, duel)
    largest = _most_told(rows)
    answer = _answer(duel[duel["size"] == largest])
    gains = duel[duel["levers"] != EAGER_AGAIN]
    chart = Chart(
        "gains",
        "Times as fast as the step as written, by lever and model",
        gains.assign(
            status=gains["verdict"].map({"undecided": "unstable"}).fillna("ok"),
            text=gains["ratio"].map(times),
            interval=[interval(row) for _, row in gains.iterrows()],
        ),
        "bar",
        Axis("ratio", "times as fast as written"),
        Axis("name"),
        label="text",
        panel="size",
        hover={"interval": "interval", "verdict": "verdict", "step (ms)": "median_ms"},
    )
    return Section(answer, [chart, _table(rows, duel, largest)], _changes(duel, largest), models)


def _most_told(rows: pd.DataFrame) -> str:
    """Return the model with most combinations, of several the largest."""
    counts = with_figures(rows).groupby(["parameters", "size"]).size()
    return str(counts[counts == counts.max()].index[-1][1])


def words(levers: str) -> str:
    """Write a combination of levers in words: `SDPA + torch.compile`."""
    return " + ".join(WORDS.get(name, name.replace("_", " ")) for name in (names(levers) or [levers]))


def _answer(duel: pd.DataFrame) -> str:
    tuned = duel[duel["levers"] != EAGER_AGAIN]
    if tuned.empty:
        return "Only the step as written was measured."
    best = tuned.loc[tuned["ratio"].idxmax()]
    singles = tuned[~tuned["levers"].str.contains("+", regex=False)]
    alone = singles.loc[singles["ratio"].idxmax()] if len(singles) else best
    return say(
        "{size}, batch {batch}, context {context}: {best} takes {after} instead of {before} ({gain}, {verdict}). Alone, "
        "{alone} gains most ({alone_gain}, {alone_verdict}).",
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
    """Write every combination of one model beside the step as written, the order of the cell kept."""
    here = rows[
        (rows["size"] == size) & (rows["context_length"] == rows.loc[rows["size"] == size, "context_length"].max())
    ]
    judged = duel.set_index([*ON, "levers"])[["ratio", "low", "high", "verdict"]]
    here = here.join(judged, on=[*ON, "levers"])
    here = here.assign(gain=[interval(row) if pd.notna(row["ratio"]) else None for _, row in here.iterrows()])
    caption = f"A step of {size} at context {int(here['context_length'].iloc[0])} in bf16, the levers in turn:"
    columns = [
        ("with", "name", text),
        ("ms", "median_ms", number),
        ("times as fast (interval)", "gain", text),
        ("verdict", "verdict", text),
        ("GPU idle", "gpu_idle_pct", percent),
        ("launches", "launches", count),
        ("peak GB", "peak_bytes", gb),
        ("tokens/s", "tokens_per_s", count),
        ("MFU", "mfu_pct", percent),
        ("loss", "loss", lambda loss: significant(loss, 4)),
    ]
    return Table("ladder", caption, here, columns, all_rows=True)


def _models(rows: pd.DataFrame, duel: pd.DataFrame) -> FirstScreen:
    """Put each model's step as written beside its fastest tuned one."""
    plain = with_figures(rows[rows["levers"] == EAGER])
    tuned = duel[duel["levers"].map(is_tuning)]
    tuned = tuned.loc[tuned.groupby(ON, sort=False)["median_ms"].idxmin()]
    both = plain.merge(
        tuned[[*ON, "levers", "name", "status", "ratio", "low", "high", "verdict", *FIGURES]],
        "left",
        ON,
        suffixes=("", "_tuned"),
    )
    both = both.assign(
        model=[f"{row['size']} ({_parameters(row)})" for _, row in both.iterrows()],
        gain=[interval(row) if pd.notna(row["ratio"]) else None for _, row in both.iterrows()],
        limit=both["limited_by"],
    )
    columns = [
        ("model", "model", text),
        ("as written: tokens/s", "tokens_per_s", count),
        ("MFU", "mfu_pct", percent),
        ("GB", "peak_bytes", gb),
        ("limited by", "limit", text),
        ("tuned: tokens/s", "tokens_per_s_tuned", count),
        ("MFU", "mfu_pct_tuned", percent),
        ("GB", "peak_bytes_tuned", gb),
        ("times as fast (interval)", "gain", text),
        ("tuned with", "name_tuned", text),
    ]
    table = Table("models", _setting(plain), both, columns, all_rows=True)
    return FirstScreen(_line(both, plain), _chart(both, plain), table, [_summary(row) for _, row in both.iterrows()])


FIGURES = ["median_ms", "tokens_per_s", "mfu_pct", "peak_bytes", "gpu_idle_pct"]


def is_tuning(levers: str) -> bool:
    """Tell whether a combination tunes a step: it trains what the step as written trains, in as much memory."""
    return levers not in (EAGER, EAGER_AGAIN) and not set(names(levers)) & set(NO_TUNING)


def _parameters(row: pd.Series) -> str:
    return data_size(row["parameters"]).replace(" GB", "B").replace(" MB", "M").replace(" kB", "k")


def _setting(plain: pd.DataFrame) -> str:
    first = plain.iloc[0]
    contexts = " and ".join(f"{each:.0f}" for each in sorted(plain["context_length"].unique()))
    return (
        f"Training steps under bf16 autocast, batch {first['setting_batch_size']:.0f}, context {contexts}. As written: plain "
        f"PyTorch. MFU: of {first['peak_tflops_per_s']:,.3g} TFLOP/s ({first['peak_source']})."
    )


def _line(both: pd.DataFrame, plain: pd.DataFrame) -> str:
    """Say what the largest model reaches whose two steps are stable and not limited by the host."""
    sure = both[(both["verdict"] == "faster") & (both["limited_by"].isna() | (both["limited_by"] == "gpu"))]
    if sure.empty:
        return say("{models} models were measured as written and tuned.", models=len(both))
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
    """Return each lever alone, and the fastest tuned combination, of one model."""
    here = duel[(duel["size"] == size) & duel["levers"].isin(LEVERS)]
    tuned = duel[(duel["size"] == size) & duel["levers"].map(is_tuning)]
    tuned = tuned[tuned["levers"].str.contains("+", regex=False)].nsmallest(1, "median_ms")
    return [
        Change(
            row["name"]
            + ("" if is_tuning(row["levers"]) else " (changes training)" if row["levers"] == "bf16_weights" else ""),
            f"{size}, batch {row['setting_batch_size']:.0f}, context {row['context_length']:.0f}",
            _cost(row, "_peer"),
            _cost(row, ""),
            row.to_dict(),
        )
        for _, row in pd.concat([tuned, here]).iterrows()
    ]


def _cost(row: pd.Series, suffix: str) -> str:
    peak = row[f"peak_bytes{suffix}"]
    return ms(row[f"median_ms{suffix}"]) + (f", {data_size(peak)}" if pd.notna(peak) else "")
