"""What other write-ups calculated beside what comes out here."""

import re
from collections.abc import Callable

import pandas as pd

from pipeline.formulas.units import GB, GIB
from pipeline.report import published
from pipeline.stages.accounting.report.facts import by_question

MIB = 2**20
ONE_TOKEN = 1

Ours = Callable[[pd.Series], float]

# Their quantity to the number that it should be, from a row of ours. Quantities of the same name have the same unit.
OF_A_TOKEN: dict[str, Ours] = {
    "parameters": lambda row: row["parameters"],
    "weights, gradients, Adam state in fp32": lambda row: row["state_bytes"] / GIB,
    "activations saved for backward, bf16, batch 1": lambda row: row["activation_bytes"] / GIB,
    "H100 80GB needed": lambda row: row["state_gpus"],
    "half of the activations": lambda row: row["activation_bytes"] / 2 / GIB,
    "parameters of one linear layer": lambda row: row["d_model"] * row["d_ff"],
    "parameters of one block": lambda row: 2 * row["d_model"] * row["d_ff"],
    "master weights fp32": lambda row: row["weights_bytes"] / GB,
    "accumulated gradients fp32": lambda row: row["gradients_bytes"] / GB,
    "Adam state fp32": lambda row: row["optimizer_bytes"] / GB,
    "total fp32": lambda row: row["state_bytes"] / GB,
    "bf16 weights for backward": lambda row: 2 * row["parameters"] / GB,
    "bf16 gradients": lambda row: 2 * row["parameters"] / GB,
    "memory saved for backward": lambda row: row["activation_bytes"] / GB,
}
OF_FSDP: dict[str, Ours] = {"FSDP devices so that one holds under 95 GB": lambda row: row["least_devices"]}
OF_MESH: dict[str, Ours] = {
    "batch below which it is communication bound": lambda row: row["tokens"],
    "forward compute time per layer": lambda row: row["compute_ms"] / 1e3 / row["tokens"],
}
SEQ_LEN = re.compile(r"S=(\d+)")


def pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """Pair each number that others calculated with ours: what, unit, theirs, ours, write_up, note."""
    answers = by_question(rows)
    theirs = published.load("accounting").dropna(subset="value")
    printed = theirs["value"].astype(str).str.extract(r"(\d[\d.]*(?:e[+-]?\d+)?)", expand=False)
    found = pd.DataFrame(
        {
            "what": theirs["topic"].str.split(" (", regex=False).str[0] + ": " + theirs["quantity"],
            "unit": theirs["unit"].fillna(""),
            "theirs": printed.astype(float),
            "ours": pd.Series([_ours(answers, line) for line in theirs.to_dict("records")], theirs.index, dtype=float),
            "write_up": theirs["write_up"],
            "note": theirs["note"],
        }
    )
    return found.dropna(subset=["theirs", "ours"]).reset_index(drop=True)


def _ours(found: dict[str, pd.DataFrame], line: dict) -> float | None:
    topic, quantity = line["topic"], line["quantity"]
    if topic.startswith("XXL"):
        return _ours_of_xxl(found, quantity)
    length = SEQ_LEN.search(quantity)
    if topic.startswith("2.7B") and length and line["unit"] in ("MiB", "GB"):
        return _ours_of_activations(found, int(length[1]), quantity, line["unit"])
    if topic.startswith("attention") and line["unit"] == "GiB":
        row = _row(found, "attention", attention="eager", seq_len=16384, batch_size=8)
        return None if row is None else row["kept_bytes"] / GIB
    return None


def _ours_of_xxl(found: dict[str, pd.DataFrame], quantity: str) -> float | None:
    sources = (
        (OF_A_TOKEN, _row(found, "memory", size="XXL", batch_size=1, seq_len=ONE_TOKEN)),
        (OF_FSDP, _row(found, "fsdp", size="XXL", batch_size=1, seq_len=ONE_TOKEN)),
        (OF_MESH, _row(found, "mesh", size="XXL", case="given")),
    )
    for known, row in sources:
        if quantity in known and row is not None:
            return float(known[quantity](row))
    return None


def _ours_of_activations(found: dict[str, pd.DataFrame], seq_len: int, quantity: str, unit: str) -> float | None:
    row = _row(found, "activations", size="2.7B", attention="eager", seq_len=seq_len, batch_size=4)
    if row is None or "per batch element" in quantity:
        return None
    column = "total_bytes" if quantity.startswith("training step") else "activation_bytes"
    return row[column] / {"MiB": MIB, "GB": GB}[unit]


def _row(found: dict[str, pd.DataFrame], question: str, **keys: object) -> pd.Series | None:
    """Return the first answer to a question with these values, or None."""
    if question not in found:
        return None
    rows = found[question]
    for column, value in keys.items():
        rows = rows[rows[column] == value]
    return rows.iloc[0] if len(rows) else None
