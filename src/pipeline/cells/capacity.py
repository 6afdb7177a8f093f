"""Whether a cell fits into the host's memory, by the formulas of its stage.

On a GPU running out of memory is an outcome. On a CPU the kernel kills what takes more than there is, after minutes.
"""

import sys
from typing import Any

import psutil

from pipeline.cells.stage import Stage
from pipeline.errors import Skipped
from pipeline.instruments.machine.cgroups import memory_limit_bytes


def too_large(stage: Stage, cell: Any, settings: Any) -> Skipped | None:
    """Return the reason why a cell on the CPU cannot be measured; None where it fits, or its stage does not say.

    What this machine has decides, so that the outcome is the same on another day. Of what is free now a line tells.
    """
    needed_bytes = stage.needed_bytes(cell, settings)
    allowed_bytes, free_bytes = memory_limit_bytes(), psutil.virtual_memory().available
    if needed_bytes > allowed_bytes:
        told = f"takes {_gb(needed_bytes)} of memory or more, this machine has {_gb(allowed_bytes)}"
        return Skipped(f"{told}; `measure --force` tries it")
    if needed_bytes > free_bytes:
        told = f"takes {_gb(needed_bytes)} of memory or more, of which {_gb(free_bytes)} are free: it may be killed"
        print(told, file=sys.stderr, flush=True)
    return None


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"
