"""Check that memory has been freed."""

import time
from collections.abc import Sequence

from torch.multiprocessing.reductions import StorageWeakRef

A_MOMENT_S = 30.0


def still_there(storages: Sequence[StorageWeakRef]) -> int:
    """Count those not freed; a gloo thread may hold the tensor of its last collective for a moment longer."""
    deadline = time.monotonic() + A_MOMENT_S
    while not all(storage.expired() for storage in storages) and time.monotonic() < deadline:
        time.sleep(0.01)
    return sum(not storage.expired() for storage in storages)
