"""The instrument `saved_tensors`: what autograd keeps between the forward and the backward pass."""

from collections.abc import Callable, Iterable

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


def saved_bytes(forward: Callable[[], Tensor], inputs: Iterable[Tensor]) -> int:
    """Run a forward pass and count the bytes of the storages that it saves beside those of its inputs.

    A storage that is saved several times, or in parts, counts once and whole.
    """
    storages = {}
    own = {tensor.untyped_storage().data_ptr() for tensor in inputs}

    def pack(tensor: Tensor) -> None:
        # Kept until the end, so that no address is given away twice. The graph gets nothing to keep: an operation that
        # saves its own output would then hold itself alive for ever.
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()

    with saved_tensors_hooks(pack, lambda nothing: nothing):
        output = forward()
    count = sum(storage.nbytes() for address, storage in storages.items() if address not in own)
    del output
    return count
