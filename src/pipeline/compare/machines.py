"""Compare machines: training as written and tuned, ceilings, price per token."""

from collections.abc import Mapping, Sequence

import pandas as pd

from pipeline.compare.runs import Run
from pipeline.report.formats import count, gb, number, percent, text
from pipeline.report.table import Columns, Table

STEPS = {"eager": "as written", "tuned": "tuned"}
SETTING = ["size", "precision", "context_length", "batch_size"]


def models(runs: Sequence[Run], prices: Mapping[str, float]) -> pd.DataFrame:
    """Return one row per run, model and way to train it (as written, tuned): rates, memory, and USD per million tokens.

    prices: USD per GPU hour, by the name of a run; a step of these tables takes one GPU.
    """
    found = [
        {
            **{name: model[name] for name in SETTING},
            "run": run.name,
            "way": words,
            **step,
            "usd": prices[run.name] / 3600 / step["tokens_per_s"] * 1e6 if run.name in prices else None,
        }
        for run in runs
        for section in run.sections.values()
        if section.first_screen
        for model in section.first_screen.summary
        for way, words in STEPS.items()
        if (step := model[way])
    ]
    return pd.DataFrame(found)


def models_table(found: pd.DataFrame, names: Sequence[str]) -> Table:
    """Write `models`: one line per model and way, tokens/s, MFU, GB and price of each run beside each other."""
    columns: Columns = [("model", "size", text), ("way", "way", text), ("batch × context", "setting", text)]
    if found.empty:
        return Table("models", "", found, columns)
    found = found.assign(setting=[f"{row['batch_size']}×{row['context_length']}" for _, row in found.iterrows()])
    keys = ["size", "way", "setting"]
    lines = found[keys].drop_duplicates()
    for name in names:
        own = found[found["run"] == name].drop(columns=["run", *SETTING[1:]]).add_suffix(f"_{name}")
        lines = lines.merge(own, "left", left_on=keys, right_on=[f"{key}_{name}" for key in keys])
        columns += [
            (f"{name}: tokens/s", f"tokens_per_s_{name}", count),
            ("MFU", f"mfu_pct_{name}", percent),
            ("GB", f"peak_bytes_{name}", gb),
        ]
        columns += (
            [("$ per 1M tokens", f"usd_{name}", number)] if found.loc[found["run"] == name, "usd"].notna().any() else []
        )
    prices = lines.reindex(columns=[f"usd_{name}" for name in names])
    if prices.notna().sum(axis=1).gt(1).any():
        cheapest = prices.astype(float).idxmin(axis=1, skipna=True).str.removeprefix("usd_")
        lines = lines.assign(cheapest=cheapest.where(prices.notna().sum(axis=1) > 1))
        columns.append(("cheapest", "cheapest", text))
    order = {size: place for place, size in enumerate(dict.fromkeys(found["size"]))}
    lines = lines.sort_values("size", key=lambda sizes: sizes.map(order), kind="stable", ignore_index=True)
    return Table("models", "Training steps, one line per model and way:", lines, columns, all_rows=True)


def ceilings_table(runs: Sequence[Run]) -> Table:
    """Write what each run's stages compare machines by: peaks, bandwidths, attention, collectives."""
    found = [
        {"what": figure.what, "unit": figure.unit, "run": run.name, "value": figure.value, "status": figure.status}
        for run in runs
        for section in run.sections.values()
        for figure in section.compared
    ]
    columns: Columns = [("rate of", "what", text), ("unit", "unit", text)]
    every = pd.DataFrame(found, columns=["what", "unit", "run", "value", "status"])
    lines = every[["what", "unit"]].drop_duplicates()
    for run in runs:
        own = every[every["run"] == run.name].drop(columns="run").rename(columns={"value": f"per_s_{run.name}"})
        own = own.rename(columns={"status": f"status_{run.name}"}).drop_duplicates(["what", "unit"])
        lines = lines.merge(own, "left", on=["what", "unit"])
        columns.append((run.name, f"per_s_{run.name}", number))
    return Table("ceilings", "Highest rates:", lines, columns, all_rows=True)
