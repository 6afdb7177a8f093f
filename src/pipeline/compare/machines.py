"""Compare machines: training as written and tuned, ceilings, price per token, what differs between them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from pipeline.cells import fields
from pipeline.compare.runs import Run
from pipeline.errors import UserError
from pipeline.report.formats import text
from pipeline.report.table import Table, columns_of
from pipeline.report.words import Words

WORDS = Words(__file__)
PRICE = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")
STEPS = {"eager": "as written", "tuned": "tuned"}
MACHINE = "–"


def prices(words: Sequence[str], runs: Sequence[Run]) -> dict[str, float]:
    """Read the prices `NAME=USD` of runs; raises UserError, one line, for an unknown name or an invalid price."""
    found, names = {}, [run.name for run in runs]
    for word in words:
        name, _, price = word.rpartition("=")
        if name not in names:
            raise UserError(f"compare: --price {word}: NAME must be one of {', '.join(names)}")
        found[name] = float(price) if PRICE.fullmatch(price) else 0.0
        if not found[name]:
            raise UserError(f"compare: --price {word}: USD must be a number above 0")
    return found


def models(runs: Sequence[Run], prices: Mapping[str, float]) -> Table:
    """Return a line per model and way to train it: rates, memory and USD per million tokens of each run.

    prices: USD per GPU hour, by the name of a run; the steps in this table use one GPU.
    """
    lines: list[dict[str, Any]] = [
        {
            "model": model["size"],
            "run": run.name,
            "way": words,
            "precision": model["precision"],
            "shape": f"{model['batch_size']}×{model['context_length']}",
            **step,
            "usd": _usd_per_million(prices.get(run.name), step["tokens_per_s"]),
        }
        for run in runs
        for section in run.sections
        if section.first_screen
        for model in section.first_screen.summary
        for way, words in STEPS.items()
        if (step := model[way])
    ]
    keys = ["model", "way", "precision", "shape"]
    frame = _by_run(lines, runs, ["run", "status", "usd", "tokens_per_s", *keys])
    sizes = list(dict.fromkeys(frame["model"]))
    frame = frame.sort_values("model", key=lambda names: names.map(sizes.index), kind="stable", ignore_index=True)
    priced = frame.dropna(subset="usd").groupby(keys)
    # A step that is out of memory elsewhere is cheapest where it fits.
    is_oom = frame["status"].eq("oom") & frame["run"].isin([*prices])
    tried = frame[frame["usd"].notna() | is_oom].groupby(keys).size()
    cheapest = priced["usd"].idxmin()[tried > 1]
    best = frame.loc[cheapest, [*keys, "run"]].set_index(keys)["run"].astype(str)
    is_unstable = priced["status"].agg(lambda statuses: statuses.eq("unstable").any()).reindex(best.index)
    best = best.mask(is_unstable.astype(bool), "undecided")
    frame = frame.join(best.rename("cheapest"), on=keys)
    names = "model way precision shape cheapest run tokens_per_s:count mfu_pct peak_bytes:gb usd:number"
    table = WORDS.table("models", frame, names, across="run", only_filled=True)
    rates = " / ".join(head for head, name, _ in table.columns if name not in (*keys, "cheapest", "run"))
    return replace(table, caption=f"{table.caption} ({rates}):")


def _usd_per_million(usd_per_hour: float | None, tokens_per_s: float | None) -> float | None:
    return usd_per_hour / 3600 / tokens_per_s * 1e6 if usd_per_hour and tokens_per_s else None


def ceilings(runs: Sequence[Run]) -> Table:
    """Return the values by which stages compare machines: peaks, bandwidths, attention, collectives."""
    lines = [
        {"rate_of": each.what, "unit": each.unit, "run": run.name, "per_s": each.value, "status": each.status}
        for run in runs
        for section in run.sections
        for each in section.compared
    ]
    return WORDS.table("ceilings", _by_run(lines, runs), "rate_of unit run per_s:number", across="run")


def differences(runs: Sequence[Run]) -> Table:
    """Return the facts that differ between runs: machines, software, and the stages that all runs have."""
    shared = set.intersection(*({record["stage"] for record in run.records} for run in runs))
    lines = [
        {"stage": stage, "what": what, "run": run.name, "value": fields.text(value)}
        for run in runs
        for record in run.records
        for (stage, what), value in _facts(record).items()
        if stage in (MACHINE, *shared)
    ]
    frame = pd.DataFrame(lines)
    of_code = frame["what"].str.startswith("code")
    frame["value"] = frame["value"].mask(of_code, frame.groupby(["stage", "what"])["value"].transform(_numbered))
    values = frame.groupby(["stage", "what", "run"], sort=False)["value"]
    wide = values.agg(lambda each: ", ".join(sorted(set(each)))).unstack("run", sort=False)
    rows = wide[wide.nunique(axis=1, dropna=False) > 1].reset_index()
    columns = [(run.name, run.name, text) for run in runs]
    return Table("differences", "What differs:", rows, [*columns_of(rows, "stage what"), *columns], all_rows=True)


def _numbered(digests: pd.Series) -> pd.Series:
    """Number digests in the order in which they appear, because nobody can read them."""
    return pd.Series([f"v{number + 1}" for number in pd.factorize(digests)[0]], digests.index)


def _by_run(lines: list[dict[str, Any]], runs: Sequence[Run], columns: Sequence[str] = ("run",)) -> pd.DataFrame:
    """Return lines as a frame, with `run` in the order of `runs`; columns: those of an empty frame."""
    found = pd.DataFrame(lines, columns=None if lines else list(columns))
    return found.assign(run=pd.Categorical(found["run"], [run.name for run in runs]))


def _facts(record: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """Return the facts of a record by stage (MACHINE for facts about the machine) and name."""
    machine, code, cpu = record["machine"], record["code"], record["machine"]["cpu"]
    of_machine = {"machine": machine["kind"], "cpu": cpu["model"], "logical cores": cpu["logical_cores"]}
    sizes = {f"{(gpu.get('memory_bytes') or 0) / 2**30:.0f} GiB" for gpu in machine["gpus"]}
    of_machine |= {"GPUs": len(machine["gpus"]), "GPU memory": ", ".join(sorted(sizes)) or "none"}
    of_machine |= {name: machine[name] for name in ("threads", "os")} | machine["software"] | {"commit": code["commit"]}
    of_stage = {"code": code["digest"], **record["settings"]}
    of_stage |= {f"code of {subject['name']}": subject["digest"] for subject in record.get("subjects", [])}
    both = {MACHINE: of_machine, record["stage"]: of_stage}
    return {(stage, name): value for stage, facts in both.items() for name, value in facts.items()}
