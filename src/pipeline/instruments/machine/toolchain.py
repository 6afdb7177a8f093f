"""Check that a machine has what torch.compile needs."""

import shutil

from pipeline.errors import Skipped


def require_compiler() -> None:
    """Raise Skipped if there is no C++ compiler, with which torch.compile builds its launchers and CPU kernels."""
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise Skipped("torch.compile needs a C++ compiler, none found")
