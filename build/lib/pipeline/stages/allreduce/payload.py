"""The numbers that an all-reduce sums: random, but every rank knows the exact sum."""

import torch

from pipeline.stages.allreduce.cell import ELEMENT_BYTES

SPREAD = 100


class WrongSum(RuntimeError):
    """The result of an all-reduce is not the sum of its inputs."""


class Payload:
    """A buffer on a device that repeats one random block, so that the expected sum needs no second large buffer.

    The block's numbers are whole, so that fp32 sums them exactly in any order.
    """

    def __init__(self, rank: int, world_size: int, block_bytes: int, max_bytes: int, device: torch.device) -> None:
        blocks = [_random_block(seed, block_bytes // ELEMENT_BYTES) for seed in range(world_size)]
        self._block = blocks[rank].to(device)
        self._sum = torch.stack(blocks).sum(dim=0).to(device)
        self._buffer = torch.empty(max_bytes // ELEMENT_BYTES, device=device)

    def fill(self, size_bytes: int) -> torch.Tensor:
        """Write this rank's numbers into the first `size_bytes` of the buffer and return that part."""
        part = self._buffer[: size_bytes // ELEMENT_BYTES]
        part.view(-1, len(self._block)).copy_(self._block)
        return part

    def parts(self, size_bytes: int, count: int) -> list[torch.Tensor]:
        """Write this rank's numbers into at most `count` parts of the buffer, as many as fit; return the parts."""
        count = min(count, self._buffer.nbytes // size_bytes)
        return list(self.fill(count * size_bytes).split(size_bytes // ELEMENT_BYTES))

    def check(self, result: torch.Tensor, what: str) -> None:
        """Raise WrongSum unless `result` is bitwise the sum over all ranks."""
        wrong = int((result.view(-1, len(self._sum)) != self._sum).sum())
        if wrong:
            raise WrongSum(f"{what}: {wrong} of {result.numel()} sums are wrong")


def _random_block(seed: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(length, generator=generator) * SPREAD).round()
