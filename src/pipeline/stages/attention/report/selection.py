"""Which rows of the attention tables answer which question."""

from typing import NamedTuple

import pandas as pd

from pipeline.report.table_rows import divide, in_order, known, ok
from pipeline.stages.attention.cell import MODES, PHASES

ORDERS = {"mode": MODES, "phase": PHASES}
KEYS = ["head_dim", "seq_len", "mode", "phase"]


def ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """Sort into reading order: by head_dim, length, mode and pass."""
    return in_order(rows, KEYS, ORDERS)


def host(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep what the host clock measured."""
    return rows[rows["clock"] == "host"]


def eager(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the eager rows by the host clock."""
    return host(rows)[host(rows)["mode"] == "eager"]


def named(head_dim: int) -> str:
    """Name a head_dim in legends and sentences."""
    return f"head_dim {head_dim}"


def compile_gains(rows: pd.DataFrame) -> pd.DataFrame:
    """Divide eager times by compiled ones, by the host clock; above one, compiling helps."""
    compiled = host(rows)[host(rows)["mode"] == "compiled"]
    gains = divide(eager(rows), compiled, ["head_dim", "seq_len", "phase", "machine", "torch", "n"])
    return in_order(gains, ["head_dim", "seq_len", "phase"], ORDERS)


def problems(rows: pd.DataFrame, mode: str) -> pd.DataFrame:
    """Keep one row a problem, that of the forward pass, which has the memory columns, in one mode."""
    found = host(rows)[(host(rows)["mode"] == mode) & (host(rows)["phase"] == "forward")]
    return found.drop_duplicates(["head_dim", "seq_len"])


def without_workspace(rows: pd.DataFrame) -> pd.DataFrame:
    """Take the libraries' workspaces out of what the allocator counted, as the formulas leave them out."""
    if "workspace_bytes" not in rows:
        return rows
    counted = ["before_backward_bytes", "peak_bytes"]
    return rows.assign(**{column: rows[column] - rows["workspace_bytes"] for column in counted})


class Memory(NamedTuple):
    """Where problems have to fit in: `cpu` or `cuda`, and its bytes."""

    device_type: str
    size_bytes: int


def memory_of(rows: pd.DataFrame) -> Memory | None:
    """Say where the problems have to fit in; None where no row does, as of cells that failed before they measured."""
    said = known(rows, "device_type", "memory_bytes")
    return Memory(said["device_type"].iloc[0], int(said["memory_bytes"].max())) if len(said) else None


def out_of_memory(rows: pd.DataFrame) -> pd.DataFrame:
    """List the problems that ran out of memory: mode, head_dim, seq_len and the passes that did."""
    failed = host(rows)[host(rows)["status"] == "oom"]
    return failed.groupby(["mode", "head_dim", "seq_len"], sort=False)["phase"].agg(list).reset_index()


def main_head_dim(rows: pd.DataFrame) -> int:
    """Choose the head_dim to show alone: 64, else the largest that has figures."""
    found = set(ok(eager(rows))["head_dim"])
    return 64 if 64 in found else int(max(found))
