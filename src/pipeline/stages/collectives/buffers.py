"""Buffers of a collective: fill them with numbers known to every rank, and check the results."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pipeline.stages.collectives.cell import IN_PLACE, ITEM_BYTES, Cell
from pipeline.stages.collectives.declared import COLLECTIVES, SUM

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# A rank's numbers repeat with a prime period, so no two shares begin alike. They are written and checked in chunks.
PERIOD, CHUNK = 4099, 2**20
# bf16 holds whole numbers up to this exactly, so sums over all ranks are exact in any order.
EXACT = 256
UNWRITTEN = -1


class Numbers:
    """The numbers of every rank, generated from its seed, and their sum; enough of each is kept for one chunk."""

    def __init__(self, ranks: int, dtype: torch.dtype, device: torch.device) -> None:
        periods = [_period(seed, max(2, EXACT // ranks)) for seed in range(ranks)]
        periods.append(torch.stack(periods).sum(0))
        repeated = [period.to(device, dtype).repeat(-(-(PERIOD + CHUNK) // PERIOD)) for period in periods]
        self._tiles = dict(zip([*range(ranks), SUM], repeated, strict=True))

    def write(self, target: Tensor, rank: int) -> None:
        """Fill a tensor with a rank's numbers, starting with the first."""
        for part, numbers in self._chunks(target, rank, 0):
            part.copy_(numbers)

    def wrong(self, found: Tensor, who: int, start: int) -> int:
        """Count the numbers that differ from those of a rank, or of SUM, from `start` on."""
        differing = [(part != numbers).sum() for part, numbers in self._chunks(found, who, start)]
        return int(torch.stack(differing).sum()) if differing else 0

    def _chunks(self, tensor: Tensor, who: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        for offset in range(0, len(tensor), CHUNK):
            part = tensor[offset : offset + CHUNK]
            yield part, self._tiles[who][(start + offset) % PERIOD :][: len(part)]


def _period(seed: int, values: int) -> Tensor:
    return torch.randint(values, (PERIOD,), generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Shape:
    """How many numbers the source, the target and a rank's share hold in a call of one size."""

    source: int
    target: int
    share: int


class Buffers:
    """A rank's source and target tensors for calls of up to `max_bytes`; in place, both are one tensor."""

    def __init__(self, cell: Cell, rank: int, max_bytes: int, device: torch.device) -> None:
        self._cell, self._rank, self._device = cell, rank, device
        self._collective, self._dtype = COLLECTIVES[cell.collective], DTYPES[cell.dtype]
        shape = self.shape(max_bytes)
        self._source = torch.empty(shape.source, dtype=self._dtype, device=device)
        in_place = cell.collective in IN_PLACE
        self._target = self._source if in_place else torch.empty(shape.target, dtype=self._dtype, device=device)

    @cached_property
    def _numbers(self) -> Numbers:
        return Numbers(self._cell.world_size, self._dtype, self._device)

    def shape(self, size_bytes: int) -> Shape:
        """Return how many numbers the tensors of a call of this size hold."""
        whole = self._cell.buffer_bytes(size_bytes) // ITEM_BYTES[self._cell.dtype]
        share = whole // self._cell.world_size
        return Shape(
            share if self._collective.sends_share else whole, share if self._collective.gets_share else whole, share
        )

    def parts(self, size_bytes: int, count: int) -> list[tuple[Tensor, Tensor]]:
        """Return adjacent sources and targets for up to `count` calls of this size, as many as fit, freshly filled.

        A target separate from its source is filled with a value that no result contains.
        """
        shape = self.shape(size_bytes)
        count = max(1, min(count, len(self._source) // shape.source, len(self._target) // shape.target))
        if self._target is not self._source:
            self._target[: count * shape.target].fill_(UNWRITTEN)
        sources = self._source[: count * shape.source].split(shape.source)
        for source in sources:
            self._numbers.write(source, self._rank)
        return list(zip(sources, self._target[: count * shape.target].split(shape.target), strict=True))

    def wrong(self, result: Tensor, size_bytes: int) -> int:
        """Count the numbers in a call's result that differ at all from the expected ones."""
        pieces = self._collective.expected(self._rank, self._cell.world_size)
        share = self.shape(size_bytes).share
        each = result.split(len(result) // len(pieces))
        return sum(
            self._numbers.wrong(part, who, start * share) for part, (who, start) in zip(each, pieces, strict=True)
        )


def needed_bytes(cell: Cell, size_bytes: int) -> int:
    """Return the least memory that a rank needs for calls of this size, by formula."""
    collective, whole = COLLECTIVES[cell.collective], cell.buffer_bytes(size_bytes)
    source = whole // cell.world_size if collective.sends_share else whole
    target = whole // cell.world_size if collective.gets_share else whole
    tensors = source if cell.collective in IN_PLACE else source + target
    return tensors + (whole if cell.is_called_directly else 0)
