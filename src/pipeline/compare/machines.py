"""Compare machines: training as written and tuned, ceilings, price per token, what differs between them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.cells import fields
from pipeline.compare.runs import Run
from pipeline.errors import UserError
from pipeline.report.formats import count, gb, number, percent, text
from pipeline.report.table import Columns, Table, filled, same

STEPS = {"eager": "as written", "tuned": "tuned"}
MODEL = ["size", "precision", "context_length", "batch_size"]


def prices(words: Sequence[str], runs: Sequence[Run]) -> dict[str, float]:
    """Read `NAME=USD` for runs; raises UserError, one line, for a name that no run has and for what is no price."""
    found, names = {}, [run.name for run in runs]
    for word in words:
        name, _, price = word.rpartition("=")
        if name not in names:
            raise UserError(f"compare: --price {word}: NAME must be one of {', '.join(names)}")
        try:
            found[name] = float(price)
        except ValueError:
            found[name] = math.nan
        if not 0 < found[name] < math.inf:
            raise UserError(f"compare: --price {word}: USD must be a number above 0")
    return found


def models(runs: Sequence[Run], prices: Mapping[str, float]) -> Table:
    """Return a line per model and way to train it: rates, memory, and USD per million tokens of each run.

    prices: USD per GPU hour, by the name of a run; a step of these tables takes one GPU.
    """
    lines: list[dict[str, Any]] = [
        {
            **{name: model[name] for name in MODEL},
            "model": model["size"],
            "run": run.name,
            "way": words,
            "batch × context": f"{model['batch_size']}×{model['context_length']}",
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
    keys = ["model", "way", "batch × context"]
    shown = _by_run(lines, runs, ["run", "usd", "tokens_per_s", *keys])
    sizes = list(dict.fromkeys(shown["model"]))
    shown = shown.sort_values("model", key=lambda names: names.map(sizes.index), kind="stable", ignore_index=True)
    priced = shown.dropna(subset="usd").groupby(keys)["usd"]
    best = shown.loc[priced.idxmin()[priced.size() > 1]]
    shown = shown.merge(best[[*keys, "run"]].rename(columns={"run": "cheapest"}), "left", keys)
    rates: Columns = [("tokens/s", "tokens_per_s", count), ("MFU", "mfu_pct", percent), ("GB", "peak_bytes", gb)]
    rates += filled(shown, [("USD per 1M tokens", "usd", number)])
    columns = [*same(text, *keys), *filled(shown, same(text, "cheapest")), ("", "run", text), *rates]
    caption = f"Training steps ({' / '.join(head for head, _, _ in rates)}):"
    return Table("models", caption, shown, columns, all_rows=True, across="")


def ceilings(runs: Sequence[Run]) -> Table:
    """Return what each run's stages compare machines by: peaks, bandwidths, attention, collectives."""
    found = [
        {"rate of": each.what, "unit": each.unit, "run": run.name, "per_s": each.value, "status": each.status}
        for run in runs
        for section in run.sections.values()
        for each in section.compared
    ]
    columns: Columns = [*same(text, "rate of", "unit"), ("", "run", text), ("", "per_s", number)]
    return Table("ceilings", "Highest rates:", _by_run(found, runs), columns, all_rows=True, across="")


def differences(runs: Sequence[Run]) -> Table:
    """Return the facts that differ between runs: of machines and software, and of stages that all runs have."""
    facts = [_facts(run) for run in runs]
    shared = set.intersection(*({record["stage"] for record in run.records} for run in runs))
    names = [name for name in dict.fromkeys(each for own in facts for each in own) if name[0] in ("–", *shared)]
    rows = [
        {"stage": name[0], "what": name[1], "run": run.name, "values": ", ".join(sorted(own.get(name, ()))) or None}
        for name in names
        if len({frozenset(own.get(name, ())) for own in facts}) > 1
        for run, own in zip(runs, facts, strict=True)
    ]
    columns: Columns = [*same(text, "stage", "what"), ("", "run", text), ("", "values", text)]
    return Table("differences", "What differs:", _by_run(rows, runs), columns, all_rows=True, across="")


def _by_run(lines: list[dict[str, Any]], runs: Sequence[Run], columns: Sequence[str] = ("run",)) -> pd.DataFrame:
    """Return lines with their runs in the order in which they were named; the columns are those of no lines."""
    found = pd.DataFrame(lines, columns=None if lines else list(columns))
    return found.assign(run=pd.Categorical(found["run"], [run.name for run in runs]))


def _facts(run: Run) -> dict[tuple[str, str], set[str]]:
    """Collect all values of each fact of a run, by stage ("–" for those of the machine) and name."""
    values: dict[tuple[str, str], set[str]] = {}
    for record in run.records:
        machine, stage = record["machine"], record["stage"]
        found = {
            ("–", "machine"): machine["kind"],
            ("–", "cpu"): machine["cpu"]["model"],
            ("–", "logical cores"): machine["cpu"]["logical_cores"],
            ("–", "GPUs"): len(machine["gpus"]),
            ("–", "threads"): machine["threads"],
            ("–", "os"): machine["os"],
            **{("–", name): version for name, version in machine["software"].items()},
            ("–", "commit"): record["code"]["commit"],
            (stage, "code"): record["code"]["digest"],
            **{(stage, name): value for name, value in record["settings"].items()},
            **{(stage, f"code of {own['name']}"): own["digest"] for own in record.get("subjects", [])},
        }
        for name, value in found.items():
            values.setdefault(name, set()).add(fields.text(value))
    return values
