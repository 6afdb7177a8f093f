"""Ranges around the modules of a model, by hooks, so that the model need not be written for it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import nn

from pipeline.ranges import RangeFactory, span


@contextmanager
def module_ranges(model: nn.Module) -> Iterator[None]:
    """Open a range around the forward pass of each part of a model: its children, and the children of its layers.

    The layers are the items of a ModuleList. A range has the name of its module, of a layer with the list's before it:
    "layers.3", and inside it "feed_forward".
    """
    handles = []
    for name, module in _parts(model):
        enter, leave = opening(span, name)
        handles.append(module.register_forward_pre_hook(enter))
        # Also where the forward pass raises, so that a range is never left open.
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _parts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, child in model.named_children():
        if not isinstance(child, nn.ModuleList):
            yield name, child
            continue
        for index, layer in enumerate(child):
            yield f"{name}.{index}", layer
            yield from layer.named_children()


def opening(open_range: RangeFactory, name: str) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return two hooks, of which the first opens a range and the second closes it."""
    opened: list[AbstractContextManager] = []

    def enter(*_arguments: object) -> None:
        opened.append(open_range(name))
        opened[-1].__enter__()

    def leave(*_arguments: object) -> None:
        opened.pop().__exit__(None, None, None)

    return enter, leave
