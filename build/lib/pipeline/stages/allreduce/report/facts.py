"""The rows of the allreduce stage, parsed once."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from pipeline.formulas.collectives import LinearCost, fit_linear_cost
from pipeline.report.table_rows import in_order, known, ok

BACKENDS = ("nccl", "gloo")
CELL = ["backend", "nodes", "world_size"]


@dataclass(frozen=True, eq=False)
class Group:
    """One backend, number of nodes and of ranks on them all, and its rows with figures."""

    backend: str
    nodes: int
    world_size: int
    rows: pd.DataFrame

    @property
    def ranks(self) -> str:
        """Its ranks in words: `2 ranks`, or `16 ranks of 2 nodes`."""
        return str(self.rows["ranks"].iloc[0])

    @property
    def name(self) -> str:
        """What the group is called: `nccl on 2 ranks`."""
        return f"{self.backend} on {self.ranks}"

    @property
    def bursts(self) -> pd.DataFrame:
        """The all-reduce of torch in place, back to back, one row per size, smallest first."""
        return calls(self.rows, "burst")

    @property
    def singles(self) -> pd.DataFrame:
        """The same calls one by one, by the host clock."""
        singles = calls(self.rows, "single")
        return singles[singles["clock"] == "host"]

    @property
    def nccl(self) -> pd.DataFrame:
        """NCCL called directly, in place, in bursts."""
        return calls(self.rows, "burst", "nccl")

    @property
    def cost(self) -> LinearCost | None:
        """Latency and algorithm bandwidth fitted to the bursts; None with fewer than two sizes."""
        try:
            return fit_linear_cost(self.bursts["size_bytes"].astype(float), self.bursts["median_ms"] / 1e3)
        except ValueError:
            return None

    @property
    def best(self) -> pd.Series:
        """The size with the highest bus bandwidth."""
        return self.bursts.loc[self.bursts["busbw_gb_per_s"].idxmax()]


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in reading order, with size, ranks and group as words."""
    of_nodes = (" of " + rows["nodes"].astype(str) + " nodes").where(rows["nodes"] > 1, "")
    ranks = rows["world_size"].astype(str) + " ranks" + of_nodes
    rows = rows.assign(
        size_mb=rows["size_bytes"].astype(float) / 1e6,
        size=[f"{size / 1e6:g} MB" for size in rows["size_bytes"].astype(float)],
        ranks=ranks,
        group=rows["backend"] + " on " + ranks,
    )
    return in_order(rows, [*CELL, "size_bytes"], {"backend": BACKENDS})


def calls(rows: pd.DataFrame, timing: str, impl: str = "torch") -> pd.DataFrame:
    """Keep the calls in place of one timing; those that failed too."""
    return rows[(rows["timing"] == timing) & (rows["impl"] == impl) & (rows["placement"] == "in_place")]


def groups(rows: pd.DataFrame) -> list[Group]:
    """Make a group of every backend, number of nodes and of ranks that has a burst."""
    cells = ok(named(rows)).groupby(CELL, sort=False)
    found = [Group(backend, int(nodes), int(world_size), cell) for (backend, nodes, world_size), cell in cells]
    return [group for group in found if len(group.bursts)]


def link_gb_per_s(beside: Mapping[str, pd.DataFrame] | None) -> float | None:
    """Return the bandwidth of a copy to another GPU, from the rows of the stage ceilings; None without one."""
    links = known((beside or {}).get("ceilings", pd.DataFrame()), "kind", "gb_per_s")
    copies = links[links["kind"] == "to_peer"] if len(links) else links
    return float(copies["gb_per_s"].iloc[0]) if len(copies) else None
