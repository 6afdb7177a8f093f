"""What the accounting tables say: every number of the section's prose."""

import pandas as pd

from pipeline.cells.rows import columns
from pipeline.formulas.units import GB, GIB
from pipeline.report.section import growth_exponent, growth_word
from pipeline.stages.accounting.rows import ROW_TYPES

ONE_TOKEN = 1
# The sequence length to answer with, where the question leaves it open.
PREFERRED_SEQ_LEN = 4096


def answered(rows: pd.DataFrame, question: str) -> pd.DataFrame:
    """Keep the answers to one question, with all of its columns; numbers that are all whole are integers again."""
    found = rows[(rows["question"] == question) & (rows["status"] == "ok")]
    # A table has no column that is empty in all of its rows.
    found = found.reindex(columns=list(dict.fromkeys([*rows, *columns(ROW_TYPES.types[question])])))
    numbers = found.select_dtypes("number")
    whole = numbers.columns[numbers.notna().all() & (numbers % 1 == 0).all()]
    return found.astype(dict.fromkeys(whole, int))


def main_row(rows: pd.DataFrame) -> pd.Series:
    """Choose the row to answer with: the smallest batch, and in it the preferred sequence length or the longest."""
    smallest = rows[rows["batch_size"] == rows["batch_size"].min()]
    preferred = smallest[smallest["seq_len"] == PREFERRED_SEQ_LEN]
    return (preferred if len(preferred) else smallest.sort_values("seq_len")).iloc[-1]


def memory(rows: pd.DataFrame) -> dict:
    """Give the training state, the activations of a token and of the main row, and the GPUs that hold them."""
    row = main_row(rows)
    tokens = row["batch_size"] * row["seq_len"]
    return {
        **_in_gb(row, "weights", "gradients", "optimizer", "state", "activation", "total"),
        "d_model": row["d_model"],
        "d_ff": row["d_ff"],
        "num_blocks": row["num_blocks"],
        "parameters": row["parameters"],
        "state_gib": row["state_bytes"] / GIB,
        "activation_bytes_per_token": row["activation_bytes"] / tokens,
        "copy_gb": 2 * row["parameters"] / GB,
        "seq_len": row["seq_len"],
        "batch_size": row["batch_size"],
        "gpu_memory_gb": row["setting_gpu_memory_gb"],
        **row[["state_gpus", "total_gpus", "state_gpus_of_gib", "total_gpus_of_gib"]].to_dict(),
    }


def _in_gb(row: pd.Series, *names: str) -> dict[str, float]:
    return {f"{name}_gb": row[f"{name}_bytes"] / GB for name in names}


def fsdp(rows: pd.DataFrame) -> dict:
    """Give the tokens that no number of devices holds, and the least number of devices where one is enough.

    That is for the main row (least, with_least_gb, with_fewer_gb) and for the shortest sequence.
    """
    row = rows.iloc[0]
    per_token = row["activation_bytes"] / (row["batch_size"] * row["seq_len"])
    # Half of the activations of more tokens than this fills a device.
    most_tokens = 2 * row["setting_device_memory_gb"] * GB / per_token
    facts = {"device_memory_gb": row["setting_device_memory_gb"], "most_tokens": most_tokens}
    possible = rows[rows["least_devices"].notna()]
    return {**facts, "enough": not possible.empty, **(_least_devices(possible) if len(possible) else {})}


def _least_devices(possible: pd.DataFrame) -> dict:
    row = main_row(possible)
    shortest = possible.sort_values(["batch_size", "seq_len"]).iloc[0]
    here = possible[(possible["seq_len"] == row["seq_len"]) & (possible["batch_size"] == row["batch_size"])]
    by_devices = here.set_index("num_devices")["bytes_per_device"] / GB
    least = int(row["least_devices"])
    return {
        "seq_len": row["seq_len"],
        "least": least,
        "with_least_gb": by_devices[least],
        "with_fewer_gb": by_devices[least - 1] if least > 1 else None,
        "shortest_seq_len": shortest["seq_len"],
        "shortest_least": shortest["least_devices"],
        "shortest_share": shortest["activation_bytes"] / shortest["state_bytes"],
    }


def mesh(rows: pd.DataFrame) -> dict:
    """Give the batch at which the mesh as given is compute bound, what changes it, and by how much."""
    cases = rows[rows["case"] != "batch"]
    given = cases[cases["case"] == "given"].iloc[0]
    if pd.isna(given["tokens"]):
        return {"given": given.to_dict(), "levers": {}, "compute_bound": False}
    found = cases[cases["tokens"].notna()]
    levers = found[found["case"] != "given"].sort_values("tokens").drop_duplicates("case")
    levers = levers.assign(share=levers["tokens"] / given["tokens"]).set_index("case")
    return {
        "compute_bound": True,
        "given": given.to_dict(),
        "tokens_per_group": given["whole_tokens"] / given["fsdp_size"],
        "tensor_share": given["tensor_ms"] / given["compute_ms"],
        "levers": levers[levers["share"] < 1].to_dict("index"),
        "best_tensor_size": float(cases.loc[cases["case"] == "best_split", "tensor_size"].iloc[0]),
        "never_from_tensor_size": cases.loc[cases["tokens"].isna(), "tensor_size"].min(),
    }


def buckets(rows: pd.DataFrame) -> dict:
    """Give the best bucket size, its overhead, and that of one call after the backward pass."""
    best = rows[rows["case"] == "best"].iloc[0]
    one_call = rows[rows["case"] == "one_call"].iloc[0]
    whole = rows[rows["case"] == "buckets"]
    return {
        "size": best["size"],
        "gradient_gb": best["gradient_bytes"] / GB,
        "bandwidth": best["setting_allreduce_gbytes_per_s"],
        "call_overhead_us": best["setting_call_overhead_us"],
        "num_buckets": best["num_buckets"],
        "bucket_mb": best["bucket_bytes"] / 1e6,
        "overhead_ms": best["overhead_ms"],
        "one_call_ms": one_call["overhead_ms"],
        "gain": one_call["overhead_ms"] / best["overhead_ms"],
        "most_buckets": whole["num_buckets"].max(),
        "most_buckets_ms": whole.loc[whole["num_buckets"].idxmax(), "overhead_ms"],
    }


def activations(rows: pd.DataFrame) -> dict:
    """Give how eager attention's scores and all the rest grow with the sequence, and the scores' share."""
    eager = rows[rows["attention"] == "eager"].sort_values("seq_len")
    flash = rows[rows["attention"] == "flash"].sort_values("seq_len")
    rest = eager["activation_bytes"] - eager["scores_bytes"]
    shares = (eager["scores_bytes"] / eager["activation_bytes"]).to_numpy()
    longest, longest_flash = eager.iloc[-1], flash.iloc[-1]
    return {
        "size": longest["size"],
        "batch_size": longest["batch_size"],
        "d_model": longest["d_model"],
        "d_ff": longest["d_ff"],
        "num_blocks": longest["num_blocks"],
        "num_heads": longest["num_heads"],
        "state_gb": longest["state_bytes"] / GB,
        "scores_word": growth_word(growth_exponent(eager["seq_len"], eager["scores_bytes"])),
        "rest_word": growth_word(growth_exponent(eager["seq_len"], rest)),
        "shortest_seq_len": eager["seq_len"].iloc[0],
        "longest_seq_len": longest["seq_len"],
        "shortest_share": shares[0],
        "longest_share": shares[-1],
        "longest_gb": longest["activation_bytes"] / GB,
        "longest_flash_gb": longest_flash["activation_bytes"] / GB,
    }


def attention(rows: pd.DataFrame) -> dict:
    """Give what the longest sequence keeps, eager and flash, and how either grows."""
    facts = {}
    for kind, group in rows.groupby("attention"):
        group = group.sort_values("seq_len")
        exponent = growth_exponent(group["seq_len"], group["kept_bytes"])
        facts[kind] = {"word": growth_word(exponent), **group.iloc[-1].to_dict()}
    eager, flash = facts["eager"], facts["flash"]
    return {
        "batch_size": eager["batch_size"],
        "num_heads": eager["num_heads"],
        "head_dim": eager["head_dim"],
        "seq_len": eager["seq_len"],
        "eager_word": eager["word"],
        "flash_word": flash["word"],
        "score_gib": eager["score_matrix_bytes"] / GIB,
        "score_gb": eager["score_matrix_bytes"] / GB,
        "most_gib": eager["most_bytes"] / GIB,
        "inputs_gib": eager["inputs_bytes"] / GIB,
        "flash_gib": flash["kept_bytes"] / GIB,
        "gain": eager["kept_bytes"] / flash["kept_bytes"],
    }


QUESTIONS = {
    "memory": memory,
    "fsdp": fsdp,
    "mesh": mesh,
    "buckets": buckets,
    "activations": activations,
    "attention": attention,
}
