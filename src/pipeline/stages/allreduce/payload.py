"""The numbers that are summed: random, yet with a sum over the ranks that every rank knows exactly."""

import torch

from pipeline.stages.allreduce.cell import ELEMENT_BYTES

SPREAD = 100


class WrongSum(RuntimeError):
    """An all-reduce gave another sum than that of its inputs."""


class Payload:
    """Buffers on a device that hold one random block over and over, so that the largest takes no second copy.

    The block's numbers are whole, so that fp32 sums them exactly in whatever order.
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
        """Write this rank's numbers into `count` parts of the buffer, or all that it has; return the parts."""
        count = min(count, self._buffer.nbytes // size_bytes)
        return list(self.fill(count * size_bytes).split(size_bytes // ELEMENT_BYTES))

    def check(self, result: torch.Tensor, what: str) -> None:
        """Raise WrongSum where `result` is not the sum over all ranks, to the last bit."""
        wrong = int((result.view(-1, len(self._sum)) != self._sum).sum())
        if wrong:
            raise WrongSum(f"{what}: {wrong} of {result.numel()} sums are wrong")


def _random_block(seed: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(length, generator=generator) * SPREAD).round()
