"""Ranges around the parts of a model, by hooks, so that the model need not be written for it.

The backward pass runs no code of the model, so that no range of the model opens in it. But autograd numbers its nodes
in the order in which the forward pass makes them: the numbers at a range's beginning and end say which nodes it made,
and hooks on these nodes open a range of its name around what they launch.
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

    The layers are the items of a ModuleList. A range has the name of its module, of a layer with the list's before it:
    "layers.3", and inside it "feed_forward".
    """
    handles = []
    for name, module in _parts(model):
        enter, leave = _opening(span, name)
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


class ForwardRanges:
    """Listen to the ranges of a forward pass on one thread, pass them on, and give them to the backward pass.

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
        """Open the range, and note the nodes that are made before it closes."""
        self._path.append(name)
        first = next_node_number()
        with self._open_range(name):
            yield
        for number in range(first, next_node_number()):
            # Inner ranges close first: a node belongs to the innermost.
            self._made_in.setdefault(number, "/".join(self._path))
        self._path.pop()

    def mark_backward(self, output: Tensor) -> None:
        """Have the backward pass from this output open a range around each node, named by its forward range's path.

        To be called once for an output. Sums of gradients, which autograd makes between nodes, stay outside of them.
        """
        if output.grad_fn is None:
            raise ValueError("mark_backward needs an output with a graph")
        for node in graph_of(output):
            # A leaf's node, which adds to its gradient, has the largest number there is.
            if name := self._made_in.get(node_number(node)):
                enter, leave = _opening(self._open_range, name)
                node.register_prehook(enter)
                node.register_hook(leave)


def _opening(open_range: RangeFactory, name: str) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return two hooks, of which the first opens a range and the second closes it."""
    opened: list[AbstractContextManager] = []

    def enter(*_arguments: object) -> None:
        opened.append(open_range(name))
        opened[-1].__enter__()

    def leave(*_arguments: object) -> None:
        opened.pop().__exit__(None, None, None)

    return enter, leave
