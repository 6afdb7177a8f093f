"""How much of the host's memory a process may take."""

import contextlib

import psutil

from pipeline.instruments.machine.cgroups import own_cgroups

# Of cgroups of version 2, and of version 1's controller.
LIMIT_FILES = {"": "memory.max", "memory": "memory.limit_in_bytes"}


def memory_limit_bytes() -> int:
    """Return the bytes of memory that the machine has, or that a container or job around this process is allowed."""
    limits = [psutil.virtual_memory().total]
    for controller, name in LIMIT_FILES.items():
        with contextlib.suppress(OSError):  # not Linux
            for folder in own_cgroups(controller):
                with contextlib.suppress(OSError, ValueError):  # not there to be read, or "max"
                    limits.append(int((folder / name).read_text(encoding="utf-8")))
    return min(limits)
