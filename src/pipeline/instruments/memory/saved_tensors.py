"""The instrument `saved_tensors`: what autograd keeps between the forward and the backward pass."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn
from torch.autograd.graph import Node, saved_tensors_hooks

from pipeline.compat.torch_private import node_number


def saved_bytes(forward: Callable[[], Tensor], inputs: Iterable[Tensor]) -> int:
    """Run a forward pass and count the bytes of the storages that it saves, without those of its inputs.

    A storage that is saved several times, or in part, counts once and in full.
    """
    storages = {}
    own = set(map(_address, inputs))

    def pack(tensor: Tensor) -> None:
        # Kept until the end, so that no address is reused. The graph gets None to keep: otherwise an operation that
        # saves its own output would keep itself alive forever.
        storages[_address(tensor)] = tensor.untyped_storage()

    with saved_tensors_hooks(pack, lambda nothing: nothing):
        output = forward()
    count = sum(storage.nbytes() for address, storage in storages.items() if address not in own)
    del output
    return count


@dataclass(frozen=True)
class SavedTensor:
    """A storage that autograd saves, described by its first user: the module, and the operation with its operand."""

    module: str
    operation: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


def saved_by_operation(module: nn.Module, x: Tensor) -> tuple[Tensor, list[SavedTensor]]:
    """Run a module; return its output and what it saves besides parameters and buffers, in the order of saving.

    A storage that is saved several times is listed once, in full.
    """
    running: list[str] = []
    packed: list[tuple[str, Tensor]] = []

    def pack(tensor: Tensor) -> int:
        # The graph keeps a number: otherwise an operation that saves its own output would keep itself alive forever.
        packed.append((running[-1], tensor))
        return len(packed) - 1

    def leave(*_: object) -> None:  # a hook's result would replace the module's
        running.pop()

    handles = []
    for name, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(lambda *_, name=name: running.append(name)))
        handles.append(part.register_forward_hook(leave))
    with saved_tensors_hooks(pack, lambda number: packed[number][1]):
        output = module(x)
    for handle in handles:
        handle.remove()
    # Reversed, so that the first operation that saves a storage, such as `Silu.self`, comes last and stays.
    operations = {
        _address(tensor): f"{node.name().split('Backward')[0]}.{operand}"
        for node in sorted(graph_of(output), key=node_number, reverse=True)
        for operand, tensor in _saved_by(node)
    }
    first: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in packed:
        first.setdefault(_address(tensor), (name, tensor))
    for own in (*module.parameters(), *module.buffers()):
        first.pop(_address(own), None)
    return output, [_described(name, tensor, operations[_address(tensor)]) for name, tensor in first.values()]


def graph_of(output: Tensor) -> list[Node]:
    """Return all nodes of a tensor's graph."""
    seen: dict[Node, None] = {}
    waiting = [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen[node] = None
            waiting += [following for following, _ in node.next_functions]
    return list(seen)


def _described(module: str, tensor: Tensor, operation: str) -> SavedTensor:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return SavedTensor(module, operation, dtype, tuple(tensor.shape), tensor.untyped_storage().nbytes())


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _saved_by(node: Node) -> Iterator[tuple[str, Tensor]]:
    """Yield the operands that a node saves, by the names that autograd gives them; a custom function's by number."""
    if hasattr(node, "saved_tensors"):
        yield from ((str(number), tensor) for number, tensor in enumerate(node.saved_tensors))
    for name in dir(node):
        if name.startswith("_saved_") and isinstance(value := getattr(node, name), Tensor):
            yield name.removeprefix("_saved_"), value
