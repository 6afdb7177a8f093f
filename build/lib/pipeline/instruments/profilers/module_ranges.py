"""Ranges around the modules of a model, by hooks, so that the model need not be written for it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import nn

from pipeline.ranges import span


@contextmanager
def module_ranges(model: nn.Module) -> Iterator[None]:
    """Open a range around the forward pass of each part of a model: its children, and the children of its layers.

    The layers are the items of a ModuleList. A range has the name of its module, of a layer with the list's before it:
    "layers.3", and inside it "feed_forward".
    """
    handles = [handle for name, module in _parts(model) for handle in _hook(name, module)]
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


def _hook(name: str, module: nn.Module) -> tuple:
    open_ranges: list[AbstractContextManager] = []

    def enter(*_arguments: object) -> None:
        opened = span(name)
        opened.__enter__()
        open_ranges.append(opened)

    def leave(*_arguments: object) -> None:
        open_ranges.pop().__exit__(None, None, None)

    # Also where the forward pass raises, so that a range is never left open.
    return module.register_forward_pre_hook(enter), module.register_forward_hook(leave, always_call=True)
