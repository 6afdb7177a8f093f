"""The rows of the allreduce stage, parsed once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pandas as pd

from pipeline.formulas.collectives import LinearCost, fit_linear_cost
from pipeline.report.table_rows import in_order, known, ok

BACKENDS = ("nccl", "gloo")
CELL = ["backend", "world_size"]
# What a table lacks when no row of it has a figure.
COLUMNS = (
    *("size_bytes", "impl", "placement", "clock", "reason", "n", "median_ms", "q1_ms", "q3_ms", "mean_ms"),
    *("busbw_gb_per_s", "oversubscribed"),
)


@dataclass(frozen=True)
class Group:
    """One backend and number of ranks.

    bursts: torch's all-reduce in place, back to back, a row a size, smallest first. cost: latency and algorithm
    bandwidth fitted to them; None with fewer than two sizes. singles: the same calls one by one, by the host clock.
    nccl: NCCL called directly, in place, in bursts.
    """

    backend: str
    world_size: int
    bursts: pd.DataFrame
    singles: pd.DataFrame
    nccl: pd.DataFrame
    cost: LinearCost | None

    @property
    def name(self) -> str:
        """What the group is called: `nccl on 2 ranks`."""
        return str(self.bursts["group"].iloc[0])

    @property
    def best(self) -> pd.Series:
        """The size with the highest bus bandwidth."""
        return self.bursts.loc[self.bursts["busbw_gb_per_s"].idxmax()]


def completed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in reading order with every column that the section reads, and size and group as words."""
    rows = rows.reindex(columns=list(dict.fromkeys([*rows.columns, *COLUMNS])))
    rows = rows.assign(
        size_mb=rows["size_bytes"].astype(float) / 1e6,
        size=[f"{size / 1e6:g} MB" for size in rows["size_bytes"].astype(float)],
        group=[f"{name} on {ranks} ranks" for name, ranks in zip(rows["backend"], rows["world_size"], strict=True)],
    )
    return in_order(rows, [*CELL, "size_bytes"], {"backend": BACKENDS})


def calls(rows: pd.DataFrame, timing: str, impl: str = "torch") -> pd.DataFrame:
    """Keep the calls in place of one timing; those that failed too."""
    return rows[(rows["timing"] == timing) & (rows["impl"] == impl) & (rows["placement"] == "in_place")]


def groups(rows: pd.DataFrame) -> list[Group]:
    """Parse the rows of all tables: a group for every backend and number of ranks that has a burst."""
    return list(_groups(ok(completed(rows))))


def link_gb_per_s(beside: Mapping[str, pd.DataFrame] | None) -> float | None:
    """Return the bandwidth of a copy to another GPU, from the rows of the stage ceilings; None without one."""
    links = known((beside or {}).get("ceilings", pd.DataFrame()), "kind", "gb_per_s")
    copies = links[links["kind"] == "to_peer"] if len(links) else links
    return float(copies["gb_per_s"].iloc[0]) if len(copies) else None


def _groups(timed: pd.DataFrame) -> Iterator[Group]:
    for (backend, world_size), cell in timed.groupby(CELL, sort=False):
        bursts, singles = calls(cell, "burst"), calls(cell, "single")
        if bursts.empty:
            continue
        yield Group(
            backend,
            int(world_size),
            bursts,
            singles[singles["clock"] == "host"],
            calls(cell, "burst", "nccl"),
            _cost(bursts),
        )


def _cost(bursts: pd.DataFrame) -> LinearCost | None:
    try:
        return fit_linear_cost(bursts["size_bytes"].astype(float), bursts["median_ms"] / 1e3)
    except ValueError:
        return None
