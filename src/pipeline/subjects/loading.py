"""Import a user's implementation. Only the processes that check and measure it do this."""

import importlib
import importlib.util
import inspect
import sys
import zlib
from collections.abc import Callable
from functools import reduce
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from pipeline.subjects import global_state
from pipeline.subjects.checking import Wrong
from pipeline.subjects.files import Source, find, split_place
from pipeline.subjects.naming import ATTENTION_GETTERS, Subject

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
# The shape to call attention with: (batch · heads, length, head_dim), as the course does, or (batch, heads, ...).
WAYS = ("folded", "heads")
# For grouped queries: with fewer key heads. In the other ways, every query head gets a copy of its keys.
SHARED = "shared"


def load(place: str) -> Any:
    """Import what a place names, calling it if it is one of the course's getters; undo changes to global state.

    Raises UserError if there is no such module, AttributeError, and what the module itself raises.
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


def attention_of(subject: Subject, way: str, is_causal: bool, group: int = 1) -> Attend:
    """Import a function or autograd function of (q, k, v, is_causal); return a function of q, k and v only.

    These have shape (batch, heads, length, head_dim). group: query heads per key/value head; every query head gets a
    copy of its keys and values, unless the way is `shared`. Raises Wrong for another class or other arguments.
    """
    function = load(subject.use)
    if isinstance(function, type):
        if not issubclass(function, torch.autograd.Function):
            raise Wrong(f"{function.__name__} is a class, but no torch.autograd.Function: name a function")
        function = function.apply
    mask, options = _options(function, is_causal)
    if way != SHARED:
        options.pop("enable_gqa", None)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        given = [q, k, v]
        if group > 1 and way != SHARED:
            given[1:] = (each.repeat_interleave(group, dim=1) for each in (k, v))
        if way != "folded":
            return function(*given, *mask, **options)
        output = function(*(each.flatten(0, 1) for each in given), *mask, **options)
        return output.view_as(q) if isinstance(output, Tensor) else output

    return attend


def _options(function: Callable[..., Tensor], is_causal: bool) -> tuple[tuple[bool, ...], dict[str, bool]]:
    """Return the arguments after q, k and v: the mask, by position or name, and `enable_gqa` if the function takes it.

    Raises Wrong if the function does not take (q, k, v, is_causal).
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin
        return (is_causal,), {}
    taken = signature.parameters
    by_name = "is_causal" in taken and taken["is_causal"].kind is inspect.Parameter.KEYWORD_ONLY
    mask, options = ((), {"is_causal": is_causal}) if by_name else ((is_causal,), {})
    try:
        signature.bind(*"qkv", *mask, **options)
    except TypeError:
        raise Wrong(f"must take (q, k, v, is_causal), takes {signature}") from None
    return mask, options | ({"enable_gqa": True} if "enable_gqa" in taken else {})


def _module(source: Source) -> ModuleType:
    if all(part.isidentifier() for part in source.module.split(".")):
        module = importlib.import_module(source.module)
        if module.__file__ == str(source.file):
            return module
    # Another module has this name, or it is not a valid one.
    name = f"subject_{zlib.crc32(bytes(source.file))}"
    spec = importlib.util.spec_from_file_location(name, source.file)
    assert spec is not None  # its name ends in .py
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
