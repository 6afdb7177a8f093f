"""What other write-ups calculated beside what comes out here, and why it is not the same."""

import re
from collections.abc import Callable
from decimal import Decimal

import pandas as pd

from pipeline.formulas.units import GB, GIB
from pipeline.report import published
from pipeline.report.tables import significant
from pipeline.stages.accounting.report.findings import ONE_TOKEN

MIB = 2**20

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


def beside_ours(found: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Pair each number of theirs that has one of ours, which are the answers by question.

    Returns topic, quantity, unit, write_up, note, value (as printed), theirs, ours, ratio (theirs over ours), agrees.
    """
    theirs = published.load("accounting").dropna(subset="value")
    printed = theirs["value"].astype(str).str.extract(r"(\d[\d.]*(?:e[+-]?\d+)?)", expand=False)
    theirs = theirs.assign(printed=printed, theirs=printed.astype(float))
    theirs["ours"] = [_ours(found, line) for line in theirs.to_dict("records")]
    pairs = theirs.dropna(subset=["theirs", "ours"]).reset_index(drop=True)
    pairs["ratio"] = pairs["theirs"] / pairs["ours"]
    return pairs.assign(agrees=(pairs["theirs"] - pairs["ours"]).abs() <= pairs["printed"].map(_last_place))


def _last_place(printed: str) -> float:
    """Return what one in the last place of a printed number is worth: 0.01 for 3517.57, 1e10 for 2.2e11."""
    return float(Decimal(1).scaleb(Decimal(printed).as_tuple().exponent))


def _ours(found: dict[str, pd.DataFrame], line: dict) -> float | None:
    topic, quantity = line["topic"], line["quantity"]
    if topic.startswith("XXL"):
        return _ours_of_xxl(found, quantity)
    length = SEQ_LEN.search(quantity)
    if topic.startswith("2.7B") and length and line["unit"] in ("MiB", "GB"):
        return _ours_of_activations(found, int(length[1]), quantity, line["unit"])
    if topic.startswith("attention") and line["unit"] == "GiB":
        row = _row(found["attention"], attention="eager", seq_len=16384, batch_size=8)
        return None if row is None else row["kept_bytes"] / GIB
    return None


def _ours_of_xxl(found: dict[str, pd.DataFrame], quantity: str) -> float | None:
    sources = (
        (OF_A_TOKEN, _row(found["memory"], size="XXL", batch_size=1, seq_len=ONE_TOKEN)),
        (OF_FSDP, _row(found["fsdp"], size="XXL", batch_size=1, seq_len=ONE_TOKEN)),
        (OF_MESH, _row(found["mesh"], size="XXL", case="given")),
    )
    for known, row in sources:
        if quantity in known and row is not None:
            return float(known[quantity](row))
    return None


def _ours_of_activations(found: dict[str, pd.DataFrame], seq_len: int, quantity: str, unit: str) -> float | None:
    row = _row(found["activations"], size="2.7B", attention="eager", seq_len=seq_len, batch_size=4)
    if row is None or "per batch element" in quantity:
        return None
    column = "total_bytes" if quantity.startswith("training step") else "activation_bytes"
    return row[column] / {"MiB": MIB, "GB": GB}[unit]


def _row(rows: pd.DataFrame, **keys: object) -> pd.Series | None:
    """Return the first row with these values, or None."""
    for column, value in keys.items():
        rows = rows[rows[column] == value] if column in rows else rows.iloc[:0]
    return rows.iloc[0] if len(rows) else None


def same_bucket_formula() -> bool:
    """Tell whether the one who derived the best number of buckets came to the formula of `best_num_buckets`."""
    theirs = published.load("accounting")
    best = theirs[(theirs["topic"] == "DDP buckets") & (theirs["quantity"] == "best number of buckets")]
    return list(best["expression"]) == ["sqrt(s/(w*o))"]


def their_mesh_limit(given: pd.Series) -> float:
    """Solve write-up 0's own inequality for its batch: one product of two on one device, both transfers on the mesh.

    2·D·F·T / C = 4·(D / W)·(F / (Y·M_X) + T / (X·M_Y)), so that T = 2·F·α / (Y·M_X) / (F − 2·α / (X·M_Y)).
    """
    alpha, width = given["intensity_flops_per_byte"], given["d_ff"]
    gathered = 2 * width * alpha / (given["tensor_size"] * given["setting_fsdp_axes"])
    return gathered / (width - 2 * alpha / (given["fsdp_size"] * given["setting_tensor_axes"]))


def table(pairs: pd.DataFrame) -> pd.DataFrame:
    """Lay out the pairs for reading; where they agree nothing is said."""
    notes = pairs["note"].fillna("").replace("checked", "")
    notes = notes.str.replace(r"\b00(\d)\b", r"write-up \1", regex=True)
    return pd.DataFrame(
        {
            "source": pairs["write_up"],
            "of": pairs["topic"].str.split(" (", regex=False).str[0] + ": " + pairs["quantity"],
            "unit": pairs["unit"].fillna(""),
            "theirs": pairs["value"],
            "here": pairs["ours"].map(lambda value: significant(value, 4)).mask(pairs["agrees"], "the same"),
            "theirs / here": pairs["ratio"].map(significant).mask(pairs["agrees"], ""),
            "why": notes.mask(pairs["agrees"], ""),
        }
    )
