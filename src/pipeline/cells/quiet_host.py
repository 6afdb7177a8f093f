"""Lock the host for a cell, alone or shared with other cells, and check how busy other processes keep it.

If other processes keep more than half of a cell's cores busy, the cell waits for them; all cells of a run together wait
for at most a minute. If they stay busy, it is measured anyway and its record says so.
"""

import os
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from typing import Any

from pipeline.cells import locks
from pipeline.errors import UserError
from pipeline.instruments.machine.cpu_use import CpuUse, cpu_use

SAMPLE_S = 0.25
BUSY_SHARE = 0.5
PATIENCE_S = 60.0
# `off` disables the check, for tests, whose machine is busy with other tests.
CHECK_VARIABLE = "PIPELINE_HOST_CHECK"
# Path of a file, set by the workflow, with a byte for each sample for which a cell of the run has waited. Without it,
# every command counts as its own run.
RUN_VARIABLE = "PIPELINE_RUN"
# A cell waiting for the host holds the turn, so that later cells cannot keep sharing the host and starve it.
HOST, TURN = "host", "host-turn"


class Host:
    """This process's lock on the host, held until the process dies.

    others_cores: how many of `cores` other processes kept busy just before the cell; None if that was not sampled.
    """

    def __init__(self, alone: bool, command: str) -> None:
        """Wait for the host; raises UserError if locking fails. command: shown to others who wait for the host."""
        setting = os.environ.get(CHECK_VARIABLE, "")
        if setting not in ("", "off"):
            raise UserError(f"{CHECK_VARIABLE} must be off or unset, got '{setting}'")
        _, self.waited_s = locks.wait_for(
            lambda: (locks.try_lock(TURN) and locks.try_lock(HOST, shared=not alone)) or None,
            lambda: f"waiting for other cells on this host; last started: {locks.holder(HOST)}",
        )
        locks.sign(HOST, command)
        locks.release(TURN)
        # All cores it may use now; its settings may limit it to fewer later.
        self._core_ids: Collection[int] = os.sched_getaffinity(0)
        self.cores = float(len(self._core_ids))
        self.others_cores: float | None = None
        self._load_before = 0.0
        self._before: CpuUse | None = None
        self._is_checking = not setting
        if alone:
            self.watch(self._core_ids)

    @property
    def is_busy(self) -> bool:
        """Tell whether other processes kept more than half of the cores busy."""
        return self.others_cores is not None and self.others_cores > BUSY_SHARE * self.cores

    def watch(self, core_ids: Collection[int]) -> None:
        """Watch, from now on, how much other processes use these cores, which belong to this cell."""
        self._core_ids, self.cores = core_ids, float(len(core_ids))
        self._before = cpu_use(core_ids) if self._is_checking else None

    def settle(self) -> None:
        """Sample how busy other processes have kept the cores since `watch`, and wait if they are busy."""
        if self._before is not None:
            self._sample(self._before)
            if self.is_busy:
                self._wait()
            if self.is_busy:
                print(f"measured on a busy host: {self._load_text()}", file=sys.stderr, flush=True)
        self._load_before = os.getloadavg()[0]

    def facts(self) -> dict[str, Any]:
        """Return the host's state before and after the cell, for its record; load averages are over one minute."""
        return {
            "cores": float(self.cores),
            "others_cores": self.others_cores,
            "busy": self.is_busy,
            "load_before": self._load_before,
            "load_after": os.getloadavg()[0],
        }

    def _wait(self) -> None:
        """Wait until the host is quiet, or until the cells of this run have waited for PATIENCE_S in all."""
        began = time.monotonic()
        for count, left_s in enumerate(_seconds_left()):
            if count == 0:
                print(f"{self._load_text()}: waiting up to {left_s:.0f} s for them", file=sys.stderr, flush=True)
            self._sample(cpu_use(self._core_ids))
            if not self.is_busy:
                break
        self.waited_s += time.monotonic() - began

    def _sample(self, before: CpuUse | None) -> None:
        self.others_cores = None
        if before is not None:
            time.sleep(max(0.0, before.at_s + SAMPLE_S - time.perf_counter()))
            if now := cpu_use(self._core_ids):
                self.others_cores, self.cores = now.others_cores(before), now.cores

    def _load_text(self) -> str:
        return f"other processes use {self.others_cores:.1f} of {self.cores:g} cores"


def _seconds_left() -> Iterator[float]:
    """Yield how long the cells of this run may still wait, before each sample; nothing if that cannot be recorded."""
    path = os.environ.get(RUN_VARIABLE)
    try:
        with open(path, "ab", buffering=0) if path else tempfile.TemporaryFile(buffering=0) as file:
            while (left_s := PATIENCE_S - SAMPLE_S * os.fstat(file.fileno()).st_size) > 0:
                file.write(b".")
                yield left_s
    except OSError:
        return
