"""The control groups that this process is in, which may allow less than the machine has."""

from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def own_cgroups(controller: str = "") -> list[Path]:
    """Return the folders of this process's cgroup and of those around it, of version 2 or of a controller of version 1.

    In a container some may not be there. Raises OSError where the kernel has no cgroups.
    """
    for line in OWN_CGROUPS.read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            root = CGROUPS / controller
            own = root / path.lstrip("/")
            return [own, *(folder for folder in own.parents if folder.is_relative_to(root))]
    return []
