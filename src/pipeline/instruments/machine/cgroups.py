"""Read how much CPU and memory the control groups (cgroups) of this process allow it."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
# By controller: "" is cgroup version 2, "memory" is version 1.
MEMORY_LIMITS = {"": "memory.max", "memory": "memory.limit_in_bytes"}


@dataclass(frozen=True)
class CpuLimit:
    """A cgroup's limit on CPU time, in cores, and the cgroup's folder."""

    cores: float
    folder: Path

    def used_s(self) -> float:
        """Return the CPU seconds that its processes have used; raises OSError or LookupError if they cannot be read."""
        with suppress(FileNotFoundError):  # version 1
            return int((self.folder / "cpuacct.usage").read_text(encoding="utf-8")) / 1e9
        return self._counts()["usage_usec"] / 1e6

    def throttled_s(self) -> float:
        """Return the seconds for which they were throttled; raises like `used_s`."""
        counts = self._counts()
        return counts["throttled_usec"] / 1e6 if "throttled_usec" in counts else counts["throttled_time"] / 1e9

    def _counts(self) -> dict[str, int]:
        lines = (self.folder / "cpu.stat").read_text(encoding="utf-8").splitlines()
        return {name: int(count) for name, _, count in (line.partition(" ") for line in lines)}


def own_cgroups(controller: str = "") -> list[Path]:
    """Return the folders of this process's cgroup and its parents, for version 2 or for a controller of version 1.

    In a container some may not exist. Raises OSError if the kernel has no cgroups.
    """
    for line in OWN_CGROUPS.read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            root = CGROUPS / controller
            own = root / path.lstrip("/")
            return [own, *(folder for folder in own.parents if folder.is_relative_to(root))]
    return []


def cpu_limit(fewer_than: int) -> CpuLimit | None:
    """Return the tightest limit on this process's CPU time, of either version; None without one below `fewer_than`.

    Raises OSError as `own_cgroups` does.
    """
    found = {folder: _quota_cores(folder) for folder in (*own_cgroups(), *own_cgroups("cpu"))}
    limits = [CpuLimit(cores, folder) for folder, cores in found.items() if cores is not None and cores < fewer_than]
    return min(limits, key=lambda limit: limit.cores, default=None)


def memory_limit_bytes() -> int:
    """Return the bytes of memory of the machine, or of the container or job around this process if it allows less."""
    limits = [psutil.virtual_memory().total]
    for controller, name in MEMORY_LIMITS.items():
        with suppress(OSError):  # not Linux
            for folder in own_cgroups(controller):
                with suppress(OSError, ValueError):  # unreadable, or "max"
                    limits.append(int((folder / name).read_text(encoding="utf-8")))
    return min(limits)


def _quota_cores(folder: Path) -> float | None:
    """Return how many cores a cgroup is allowed; None if it sets no limit or cannot be read."""
    with suppress(OSError, ValueError):  # ValueError: the quota is "max"
        quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota_us, period_us = (
            int((folder / f"cpu.cfs_{name}_us").read_text(encoding="utf-8")) for name in ("quota", "period")
        )
        return quota_us / period_us if quota_us > 0 else None
    return None
