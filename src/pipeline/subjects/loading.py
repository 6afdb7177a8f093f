"""Import an implementation of the user's own. Only processes that check and measure it do."""

import importlib
import importlib.util
import sys
import zlib
from functools import reduce
from types import ModuleType
from typing import Any

from pipeline.subjects import global_state
from pipeline.subjects.files import Source, find, split_place
from pipeline.subjects.naming import ATTENTION_GETTERS


def load(place: str) -> Any:
    """Return what a place names, `module:attribute` or `file.py:attribute`; of the course's getters, what they return.

    What the import changes of the state that all in this process share is undone. Raises UserError where there is no
    such module, AttributeError where it lacks the attribute, and whatever the module raises.
    """
    target, attribute = split_place(place)
    source = find(target)
    own = [str(folder) for folder in (source.root, source.project, source.project / "src") if folder.is_dir()]
    sys.path[:] = [*dict.fromkeys(own), *(folder for folder in sys.path if folder not in own)]
    state = global_state.read()
    try:
        found: Any = reduce(getattr, attribute.split("."), _module(source))
        return found() if attribute in ATTENTION_GETTERS else found
    finally:
        global_state.restore(state)


def _module(source: Source) -> ModuleType:
    if all(part.isidentifier() for part in source.module.split(".")):
        module = importlib.import_module(source.module)
        if module.__file__ == str(source.file):
            return module
    # Another module has its name, or it is none.
    name = f"subject_{zlib.crc32(bytes(source.file))}"
    spec = importlib.util.spec_from_file_location(name, source.file)
    assert spec is not None  # its name ends in .py
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
