"""GPUs for one process alone: an exclusive lock for each, held until the process dies.

The locks are the kernel's (flock), so that no death of a holder, however sudden, leaves one behind. Every user of
the machine shares one folder of lock files.
"""

import fcntl
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.instruments.gpus import visible_devices_variable, visible_gpus

_POLL_S = (0.1, 0.3)  # drawn anew each time, so that cells that wait do not collide again and again
_QUIET_S = 3.0

# The descriptors of the locks that this process holds, by device. They are closed by its death alone: what CUDA
# took of a device, it gives back no sooner.
_held: dict[str, int] = {}


class TooFewGPUs(Exception):
    """The machine has GPUs, but fewer than are needed; its message is the reason to record."""

    def __init__(self, needed: int, present: int) -> None:
        super().__init__(f"needs {needed} GPU{'' if needed == 1 else 's'}, {present} present")
        self.needed = needed
        self.present = present


@dataclass(frozen=True)
class Claim:
    """The GPUs that this process took, as CUDA_VISIBLE_DEVICES names them; CUDA shows it no others."""

    device_ids: tuple[str, ...]


def claim_gpus(count: int, devices: Sequence[str] | None = None, lock_folder: Path | None = None) -> Claim:
    """Wait until `count` GPUs are free at once, lock them, and make CUDA see these alone.

    To be called before CUDA starts, which reads the choice of devices once. On a machine without GPUs the claim is
    empty; so it is for a count of 0, which hides every GPU. Inside a scheduler's allocation of just this many GPUs
    nothing is locked; cells that share a larger one lock each other out as anywhere else.
    devices: the ids to choose from, by default those of the visible GPUs; lock_folder: by default the machine's.
    Raises TooFewGPUs, and RuntimeError where CUDA runs already.
    """
    pool = [gpu.id for gpu in visible_gpus()] if devices is None else list(devices)
    if not pool or count == 0:
        return _show(pool, ())
    if count > len(pool):
        raise TooFewGPUs(count, len(pool))
    if count == len(pool) and _in_allocation():
        return Claim(tuple(pool))
    return _show(pool, _wait_for_locks(pool, count, lock_folder or _machine_lock_folder()))


def _show(pool: list[str], chosen: tuple[str, ...]) -> Claim:
    if list(chosen) != pool:
        _check_cuda_not_started()
    os.environ[visible_devices_variable()] = ",".join(chosen)
    return Claim(chosen)


def _check_cuda_not_started() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise RuntimeError("CUDA runs already, on devices of its own choice: claim GPUs before it starts")


def _in_allocation() -> bool:
    granted = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE")
    return "SLURM_JOB_ID" in os.environ and any(name in os.environ for name in granted)


def _machine_lock_folder() -> Path:
    return Path(tempfile.gettempdir()) / "llm-systems-pipeline-gpu-locks"


def _wait_for_locks(pool: list[str], count: int, folder: Path) -> tuple[str, ...]:
    with _open_to_all_users():
        folder.mkdir(parents=True, exist_ok=True)
    waiting_since, announced = time.monotonic(), False
    while not (chosen := _try_locks(pool, count, folder)):
        if not announced and time.monotonic() - waiting_since > _QUIET_S:
            print(f"waiting for {count} of {len(pool)} GPUs to be free (locks in {folder})", file=sys.stderr)
            announced = True
        time.sleep(random.uniform(*_POLL_S))
    return chosen


def _try_locks(pool: list[str], count: int, folder: Path) -> tuple[str, ...]:
    """Lock `count` devices or none: whoever kept some while waiting for more would block others who do the same."""
    chosen = [device for device in pool if device in _held][:count]
    taken: dict[str, int] = {}
    for device in pool:
        if len(chosen) + len(taken) == count:
            break
        if (descriptor := _lock(folder / f"{device}.lock")) is not None:
            taken[device] = descriptor
    if len(chosen) + len(taken) < count:
        for descriptor in taken.values():
            os.close(descriptor)
        return ()
    _held.update(taken)
    return tuple(device for device in pool if device in chosen or device in taken)


def _lock(path: Path) -> int | None:
    """Lock a file and return its descriptor, or None while any process holds it, this one included."""
    with _open_to_all_users():
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def _open_to_all_users() -> Iterator[None]:
    umask = os.umask(0)
    try:
        yield
    finally:
        os.umask(umask)
