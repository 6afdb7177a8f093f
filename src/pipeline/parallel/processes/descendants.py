"""Kill what ranks leave running, such as a daemon started by the user's code, even if it has detached."""

import contextlib
import ctypes
import sys
import time
from collections.abc import Iterator

import psutil

PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 5.0  # a process may be stuck in a driver


@contextlib.contextmanager
def ending_orphans() -> Iterator[None]:
    """Kill, at the end of the block, everything that the processes started in it have left running.

    The block ends those processes itself. Works only on Linux, where this process can adopt orphans.
    """
    if sys.platform != "linux":
        yield
        return
    before = set(psutil.Process().children())
    _adopt(True)
    try:
        yield
    finally:
        give_up = time.monotonic() + PATIENCE_S
        # Repeated, because an orphan's own children are adopted only once it is dead.
        while (orphans := set(psutil.Process().children()) - before) and time.monotonic() < give_up:
            for orphan in orphans:
                with contextlib.suppress(psutil.Error):
                    orphan.kill()
            psutil.wait_procs(orphans, give_up - time.monotonic())
        _adopt(False)


def _adopt(wish: bool) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(wish))
