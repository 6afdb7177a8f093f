"""What a cell asks of whoever runs it: GPUs, nodes, and of Slurm more where it is over several nodes."""

from collections.abc import Collection
from typing import Any

ALWAYS = ("gpu", "nodes")
# As Snakemake's executor for Slurm names them.
OVER_NODES = ("mpi", "tasks", "tasks_per_gpu", "gres")


def resource_names(axes: Collection[str]) -> tuple[str, ...]:
    """Return what cells with these axes may ask for."""
    return (*ALWAYS, *OVER_NODES) if "nodes" in axes else ALWAYS


def asked(cell: Any) -> dict[str, Any]:
    """Return how much of each resource a cell asks for.

    With `mpi` the job's command starts steps itself. It has one task on each node, and as many GPUs on each.
    """
    nodes = getattr(cell, "nodes", 1)
    found = {"gpu": cell.gpus * nodes, "nodes": nodes}
    if nodes == 1:
        return found
    gres = f"gpu:{cell.gpus}" if cell.gpus else None
    return found | dict(zip(OVER_NODES, ("srun", nodes, 0, gres), strict=True))
