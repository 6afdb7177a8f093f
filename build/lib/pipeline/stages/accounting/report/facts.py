"""The answers of the accounting stage by question, and the rows to tell of."""

import pandas as pd

from pipeline.formulas.units import GB
from pipeline.stages.accounting.cell import QUESTIONS

# The sequence length to answer with, where the question leaves it open.
PREFERRED_SEQ_LEN = 4096


def by_question(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the answers to each question that has any, with all of its columns."""
    answers = {question: _answered(rows, question) for question in QUESTIONS}
    return {question: found for question, found in answers.items() if len(found)}


def of_one_model(answers: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Keep, of each question, the answers about the first model that it was asked of."""
    return {question: rows[rows["size"] == rows["size"].iloc[0]] for question, rows in answers.items()}


def _answered(rows: pd.DataFrame, question: str) -> pd.DataFrame:
    """Keep the answers to one question; numbers that are all whole are integers again."""
    found = rows[(rows["question"] == question) & (rows["status"] == "ok")]
    numbers = found.select_dtypes("number")
    whole = numbers.columns[numbers.notna().all() & (numbers % 1 == 0).all()]
    return found.astype(dict.fromkeys(whole, int))


def main_row(rows: pd.DataFrame) -> pd.Series:
    """Choose the row to answer with: the smallest batch, and in it the preferred sequence length or the longest."""
    smallest = rows[rows["batch_size"] == rows["batch_size"].min()]
    preferred = smallest[smallest["seq_len"] == PREFERRED_SEQ_LEN]
    return (preferred if len(preferred) else smallest.sort_values("seq_len")).iloc[-1]


def least_devices(fsdp: pd.DataFrame) -> pd.Series | None:
    """Return the main row of the sequence lengths that some number of devices holds, with that number; or None."""
    possible = fsdp[fsdp["least_devices"] == fsdp["num_devices"]]
    return None if possible.empty else main_row(possible)


def most_tokens(fsdp: pd.DataFrame) -> float:
    """Return the tokens of which half of the activations, which are not sharded, fill a device."""
    row = fsdp.iloc[0]
    bytes_per_token = row["activation_bytes"] / (row["batch_size"] * row["seq_len"])
    return 2 * row["setting_device_memory_gb"] * GB / bytes_per_token


def mesh_levers(mesh: pd.DataFrame) -> pd.DataFrame:
    """Return one row per case, by name: the mesh as given, each change of it, and of other whole splits the best."""
    cases = mesh[mesh["case"] != "batch"].sort_values("tokens", kind="stable").drop_duplicates("case")
    given = cases["case"] == "given"
    return pd.concat([cases[given], cases[~given]]).set_index("case")


def of_attention(rows: pd.DataFrame, kind: str) -> pd.Series:
    """Return the longest sequence's row of one kind of attention."""
    return rows[rows["attention"] == kind].sort_values("seq_len").iloc[-1]
