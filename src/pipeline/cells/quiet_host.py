"""The host of a cell: for it alone or shared with other cells, and how busy processes that are no cells keep it.

Where those keep more than half of a cell's cores busy, it waits for them, once a run and a minute at most, is measured
all the same, and its record says so.
"""

import os
import sys
import time
from collections.abc import Collection
from typing import Any

from pipeline.cells import locks
from pipeline.errors import UserError
from pipeline.instruments.machine.cpu_use import CpuUse, cpu_use

SAMPLE_S = 0.25
BUSY_SHARE = 0.5
PATIENCE_S = 60.0
# For tests, whose machine is busy with other tests.
CHECK_VARIABLE = "PIPELINE_HOST_CHECK"
# The workflow names in it a file by which the cells of its run tell that one has waited. A command by hand is a run of
# its own.
RUN_VARIABLE = "PIPELINE_RUN"
# Who waits for the host keeps the turn, so that cells that come later do not share it for ever with one another.
HOST, TURN = "host", "host-turn"


class Host:
    """The host as this process has it, from when it was taken until the process dies.

    others_cores: how many of `cores` other processes kept busy just before the cell, None where nobody looked.
    """

    def __init__(self, alone: bool, command: str) -> None:
        """Wait for the host; raises UserError where no lock can be had; command: what others who wait are told."""
        wish = os.environ.get(CHECK_VARIABLE, "")
        if wish not in ("", "off"):
            raise UserError(f"{CHECK_VARIABLE} must be off or left unset, got '{wish}'")
        _, self.waited_s = locks.wait_for(
            lambda: (locks.try_lock(TURN) and locks.try_lock(HOST, shared=not alone)) or None,
            lambda: f"waiting for the host, last taken by {locks.holder(HOST)}",
        )
        locks.sign(HOST, command)
        locks.release(TURN)
        # All that it may use now: its settings may keep it to fewer later.
        self._core_ids: Collection[int] = os.sched_getaffinity(0)
        self.cores = float(len(self._core_ids))
        self.others_cores: float | None = None
        self._load_before = 0.0
        self._before: CpuUse | None = None
        self._looks = not wish
        if alone:
            self.watch(self._core_ids)

    @property
    def is_busy(self) -> bool:
        """Tell whether other processes kept more than half of the cores busy."""
        return self.others_cores is not None and self.others_cores > BUSY_SHARE * self.cores

    def watch(self, core_ids: Collection[int]) -> None:
        """Look from now on at what other processes use of these cores, which are this cell's own."""
        self._core_ids, self.cores = core_ids, float(len(core_ids))
        self._before = cpu_use(core_ids) if self._looks else None

    def settle(self) -> None:
        """Look at what other processes, not this one, have used since the host was taken; wait for a busy host."""
        if self._before is not None:
            self._sample(self._before)
            if self.is_busy and _is_first_wait_of_run():
                self._wait()
            if self.is_busy:
                print(f"measured on a busy host: {self._words()}", file=sys.stderr, flush=True)
        self._load_before = os.getloadavg()[0]

    def facts(self) -> dict[str, Any]:
        """Describe the host before and after, for a record: JSON-able; the load averages are over a minute."""
        return {
            "cores": float(self.cores),
            "others_cores": self.others_cores,
            "busy": self.is_busy,
            "load_before": self._load_before,
            "load_after": os.getloadavg()[0],
        }

    def _wait(self) -> None:
        print(f"{self._words()}: waiting up to {PATIENCE_S:.0f} s, once a run", file=sys.stderr, flush=True)
        began = time.monotonic()
        while self.is_busy and time.monotonic() - began < PATIENCE_S:
            self._sample(cpu_use(self._core_ids))
        self.waited_s += time.monotonic() - began

    def _sample(self, before: CpuUse | None) -> None:
        self.others_cores = None
        if before is not None:
            time.sleep(max(0.0, before.at_s + SAMPLE_S - time.perf_counter()))
            if now := cpu_use(self._core_ids):
                self.others_cores, self.cores = now.others_cores(before), now.cores

    def _words(self) -> str:
        return f"other processes use {self.others_cores:.1f} of {self.cores:g} cores"


def _is_first_wait_of_run() -> bool:
    noted = os.environ.get(RUN_VARIABLE)
    if noted is None:
        return True
    try:
        os.close(os.open(noted, os.O_CREAT | os.O_EXCL))
    except OSError:  # it is there, or cannot be
        return False
    return True
