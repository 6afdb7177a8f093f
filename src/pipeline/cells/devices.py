"""Claim GPUs for one process: an exclusive lock on each, held until the process dies."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.cells import locks
from pipeline.instruments.machine.gpus import visible_devices_variable, visible_gpus

ALLOCATION_VARIABLES = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE")


class TooFewGPUs(Exception):
    """The machine has GPUs, but fewer than are needed; its message is the reason to record."""

    def __init__(self, needed: int, present: int) -> None:
        super().__init__(f"needs {needed} GPU{'' if needed == 1 else 's'}, {present} present")


@dataclass(frozen=True)
class Claim:
    """The GPUs that this process claimed, as in CUDA_VISIBLE_DEVICES, and how long it waited for them."""

    device_ids: tuple[str, ...]
    waited_s: float = 0.0


def claim_gpus(count: int, command: str) -> Claim:
    """Wait until `count` visible GPUs are free at the same time, lock them, and hide all others from CUDA.

    The claim is empty on a machine without GPUs, and for a count of 0, which hides every GPU. If a scheduler allocated
    exactly this many GPUs, nothing is locked; cells that share a larger allocation lock each other out as usual.
    command: shown to others who wait for these GPUs.
    Raises TooFewGPUs, UserError if locking fails, and RuntimeError if CUDA already runs and other GPUs were visible.
    """
    pool = tuple(gpu.id for gpu in visible_gpus())
    if pool and count > len(pool):
        raise TooFewGPUs(count, len(pool))
    if (
        pool
        and count == len(pool)
        and "SLURM_JOB_ID" in os.environ
        and any(name in os.environ for name in ALLOCATION_VARIABLES)
    ):
        return Claim(pool)
    claim = _wait_for_locks(pool, count, command) if pool and count else Claim(())
    torch = sys.modules.get("torch")
    if claim.device_ids != pool and torch is not None and torch.cuda.is_initialized():
        raise RuntimeError("CUDA has already started: claim GPUs before it starts")
    os.environ[visible_devices_variable()] = ",".join(claim.device_ids)
    return claim


def _wait_for_locks(pool: Sequence[str], count: int, command: str) -> Claim:
    in_use: list[str] = []

    def announcement() -> str:
        holders = dict.fromkeys(locks.holder(device) for device in in_use)
        return f"waiting for {count} of {len(pool)} GPUs to be free: in use by {'; '.join(holders)}"

    chosen, waited_s = locks.wait_for(lambda: _try_locks(pool, count, in_use), announcement)
    for device in chosen:
        locks.sign(device, command)
    return Claim(chosen, waited_s)


def _try_locks(pool: Sequence[str], count: int, in_use: list[str]) -> tuple[str, ...] | None:
    """Lock `count` devices or none, so that waiting processes cannot deadlock; in_use: filled with others' devices."""
    locked: list[str] = []
    in_use.clear()
    for device in pool:
        if len(locked) < count:
            (locked if locks.try_lock(device) else in_use).append(device)
    if len(locked) == count:
        return tuple(locked)
    for device in locked:
        locks.release(device)
    return None
