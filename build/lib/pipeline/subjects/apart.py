"""Keep the modules of each project of the user's own apart: two checkouts have packages of one name."""

import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from types import ModuleType

from pipeline.subjects.files import INSTALLED, Source


class OwnModules:
    """The modules that lie in the projects of some sources, and where to import from; in their place only in its turn.

    shared: names of packages that stay for all, whoever they are of. What is installed stays for all, too.
    """

    def __init__(self, sources: Iterable[Source], shared: Collection[str]) -> None:
        self._folders = {folder.resolve() for source in sources for folder in (source.root, source.project)}
        self._shared = shared
        self._modules: dict[str, ModuleType] = {}
        self._path: list[str] = []
        self._outside: list[str] = []
        self._size = 0

    def put_in(self) -> None:
        """Let imports find these modules, and import others as they would."""
        self._outside, sys.path[:] = list(sys.path), self._path or sys.path
        sys.modules.update(self._modules)
        self._size = len(sys.modules)

    def take_out(self) -> None:
        """Forget these modules until the next turn, with those that were imported in this one."""
        self._path, sys.path[:] = list(sys.path), self._outside
        if len(sys.modules) != self._size:
            self._modules |= {name: module for name, module in sys.modules.items() if self._has(name, module)}
        for name in self._modules:
            sys.modules.pop(name, None)

    def _has(self, name: str, module: ModuleType) -> bool:
        if name.partition(".")[0] in self._shared:
            return False
        places = [module.__file__] if getattr(module, "__file__", None) else getattr(module, "__path__", ())
        return any(
            path.is_relative_to(folder) and not INSTALLED & set(path.relative_to(folder).parts)
            for path in (Path(place).resolve() for place in places if isinstance(place, str))
            for folder in self._folders
        )
