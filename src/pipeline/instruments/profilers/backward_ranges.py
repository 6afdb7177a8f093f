"""Ranges in the backward pass, each named after the forward range whose work it undoes.

The backward pass runs no code of the model, so that no range of the model opens in it. But autograd numbers its nodes
in the order in which the forward pass makes them: the numbers at a range's beginning and end say which nodes it made,
and hooks on these nodes open a range of its name around what they launch.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from pipeline.compat.torch_private import next_node_number, node_number
from pipeline.instruments.memory.saved_tensors import graph_of
from pipeline.instruments.profilers.module_ranges import opening
from pipeline.ranges import RangeFactory


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
                enter, leave = opening(self._open_range, name)
                node.register_prehook(enter)
                node.register_hook(leave)
