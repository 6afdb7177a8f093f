"""Open ranges around the parts of a model with hooks, without changing the model's code.

The backward pass runs no model code, so the model's ranges do not open in it. But autograd numbers its nodes in the
order in which the forward pass creates them: the next number at the start and end of a range tells which nodes it
created, and hooks on these nodes open a range of the same name around what they launch.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import Tensor, nn

from pipeline.compat.torch_private import next_node_number, node_number
from pipeline.instruments.memory.saved_tensors import graph_of
from pipeline.ranges import RangeFactory, span


@contextmanager
def module_ranges(model: nn.Module) -> Iterator[None]:
    """Open a range around the forward pass of each part of a model: its children, and the children of its layers.

    The layers are the items of a ModuleList. A range is named after its module; the name of a layer includes the
    list's: "layers.3", with "feed_forward" inside it.
    """
    handles = []
    for name, module in _parts(model):
        enter, leave = _opening(span, name)
        handles.append(module.register_forward_pre_hook(enter))
        # always_call: the range is closed even if the forward pass raises.
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


class ForwardRanges:
    """Record the ranges of a forward pass on one thread, pass them on, and reopen them in the backward pass.

    with listening(noted := ForwardRanges(listener())):
        loss = model(...)
    noted.mark_backward(loss)
    loss.backward()
    """

    def __init__(self, open_range: RangeFactory):
        self._open_range = open_range
        self._path: list[str] = []
        self._made_in: dict[int, str] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Open the range and record which nodes are created before it closes."""
        self._path.append(name)
        first = next_node_number()
        with self._open_range(name):
            yield
        for number in range(first, next_node_number()):
            # Inner ranges close first, so a node belongs to the innermost.
            self._made_in.setdefault(number, "/".join(self._path))
        self._path.pop()

    def mark_backward(self, output: Tensor) -> None:
        """Make the backward pass from this output open a range around each node, named by its forward range's path.

        Call it once per output. Sums of gradients, which autograd computes between nodes, stay outside these ranges.
        """
        if output.grad_fn is None:
            raise ValueError("mark_backward needs an output with a graph")
        for node in graph_of(output):
            # Leaf nodes, which accumulate gradients, all have the largest possible number, so they get no range.
            if name := self._made_in.get(node_number(node)):
                enter, leave = _opening(self._open_range, name)
                node.register_prehook(enter)
                node.register_hook(leave)


def _opening(open_range: RangeFactory, name: str) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return two hooks: the first opens a range, the second closes it."""
    opened: list[AbstractContextManager] = []

    def enter(*_arguments: object) -> None:
        opened.append(open_range(name))
        opened[-1].__enter__()

    def leave(*_arguments: object) -> None:
        opened.pop().__exit__(None, None, None)

    return enter, leave
