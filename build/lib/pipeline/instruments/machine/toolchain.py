"""What torch.compile needs of a machine."""

import shutil

from pipeline.errors import Skipped


def require_compiler() -> None:
    """Raise Skipped where there is no C++ compiler: torch.compile builds its launchers, and CPU kernels, with one."""
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise Skipped("torch.compile needs a C++ compiler, none found")
