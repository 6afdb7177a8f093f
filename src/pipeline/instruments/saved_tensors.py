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

    def pack(tensor: Tensor) -> Tensor:
        # Kept until the end, so that no address is given away twice.
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = forward()
    count = sum(storage.nbytes() for address, storage in storages.items() if address not in own)
    del output
    return count
