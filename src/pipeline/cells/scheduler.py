"""The scheduler's job that a cell runs in: its number and its nodes."""

import os
import subprocess
from dataclasses import dataclass

PATIENCE_S = 10.0  # squeue keeps retrying if the controller is down


@dataclass(frozen=True)
class SlurmJob:
    """A Slurm job: its number, its nodes as Slurm writes them (`n[1-2]`), and how many there are."""

    number: str
    nodes: str
    num_nodes: int


def slurm_job() -> SlurmJob | None:
    """Return the Slurm job of this process, None outside of one; if its nodes are unknown, one is assumed."""
    number = os.environ.get("SLURM_JOB_ID")
    if number is None:
        return None
    nodes, count = (os.environ.get(name, "") for name in ("SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES"))
    if not count:  # Snakemake's plugin leaves only the number to a job that starts its own steps
        nodes, _, count = _ask_squeue(number).partition(" ")
    return SlurmJob(number, nodes, int(count) if count.isdecimal() else 1)


def _ask_squeue(number: str) -> str:
    command = ["squeue", "--noheader", "--format=%N %D", "--jobs", number]
    try:
        result = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, timeout=PATIENCE_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.rstrip()
