"""Sizes, memory and traffic of fully sharded training.

A unit's parameters lie one after the other in a flat buffer, padded so that each starts on a multiple of
`ALIGNMENT` elements and all ranks' pieces have the same length. Symbols: n ranks, P elements of all flat buffers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from pipeline.formulas.collectives import all_gather_bus_factor
from pipeline.formulas.training_state import ADAMW_MOMENTS

# 16 bytes of a two-byte type: what vectorised loads and tensor-map descriptors need at the start of a matrix.
ALIGNMENT = 8
# One for the unit that computes, one for the next.
BUFFERS_GATHERED = 2


@dataclass(frozen=True)
class FlatLayout:
    """Where parameters lie in a flat buffer: their sizes and offsets in elements, and the length of a rank's piece."""

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    piece: int
    world_size: int

    @property
    def elements(self) -> int:
        """The length of the buffer, padding included."""
        return self.piece * self.world_size

    @property
    def is_sent_as_it_is(self) -> bool:
        """Whether the buffer is a single parameter without padding, so that its gradient is sent without a copy."""
        return self.sizes == (self.elements,)

    def sizes_and_gaps(self) -> list[int]:
        """Return the lengths to split the buffer by: each parameter's, followed by that of its padding."""
        ends = [*self.offsets[1:], self.elements]
        pieces = zip(self.offsets, self.sizes, ends, strict=True)
        return [length for offset, size, end in pieces for length in (size, end - offset - size)]

    def own(self, index: int, rank: int) -> tuple[int, int]:
        """Return begin and end, counted in the parameter's elements, of its part that lies in a rank's piece."""
        begin = self.piece * rank - self.offsets[index]
        return tuple(min(max(edge, 0), self.sizes[index]) for edge in (begin, begin + self.piece))  # type: ignore[return-value]

    def own_elements(self, rank: int) -> int:
        """Count the elements of parameters in a rank's piece, without padding."""
        return sum(end - begin for begin, end in (self.own(index, rank) for index in range(len(self.sizes))))


def flat_layout(sizes: Sequence[int], world_size: int) -> FlatLayout:
    """Lay parameters of these sizes (in elements) one after the other."""
    ends = list(accumulate(_rounded_up(size, ALIGNMENT) for size in sizes))
    piece = _rounded_up(ends[-1], ALIGNMENT * world_size) // world_size
    return FlatLayout(tuple(sizes), (0, *ends[:-1]), piece, world_size)


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


@dataclass(frozen=True)
class FsdpPlan:
    """What fully sharded training holds and sends: the layouts of its units in order, and the rest.

    itemsize: bytes per element of the shards. compute_itemsize: bytes per element gathered, and per gradient element
    sent. replicated: elements of the parameters that every rank keeps whole. is_tied: whether the first unit is used
    again after the last one.
    """

    units: tuple[FlatLayout, ...]
    replicated: int
    itemsize: int
    compute_itemsize: int
    is_tied: bool = False

    @property
    def persistent_bytes(self) -> int:
        """Count the bytes of parameters between steps: the pieces and what is replicated."""
        return self.itemsize * (sum(unit.piece for unit in self.units) + self.replicated)

    @property
    def gradient_bytes(self) -> int:
        """Count the bytes of gradients before the optimizer's step: the same as the parameters'."""
        return self.persistent_bytes

    @property
    def own_elements(self) -> int:
        """Count the parameter elements on the fullest rank, without padding."""
        ranks = range(self.units[0].world_size)
        return self.replicated + max(sum(unit.own_elements(rank) for unit in self.units) for rank in ranks)

    @property
    def moments_bytes(self) -> int:
        """Count the bytes of AdamW's two moments on the fullest rank; padding has none."""
        return ADAMW_MOMENTS * self.itemsize * self.own_elements

    @property
    def gathered_bytes(self) -> int:
        """Count the bytes of both buffers for gathered units: units alternate, each buffer fits its largest one."""
        turns = [self.units[turn::BUFFERS_GATHERED] for turn in range(BUFFERS_GATHERED)]
        return self.compute_itemsize * sum(max((unit.elements for unit in units), default=0) for units in turns)

    @property
    def collecting_bytes(self) -> int:
        """Count the peak bytes of gradients during the backward pass, which goes through the units from last to first.

        While a unit's gradients are computed, the later units' pieces have been received, and the buffer of the unit
        just after it is being sent, plus its piece as received if that needs converting. Then the gradients are copied
        into a buffer, unless there is only one, and the piece is received.
        """
        most = 0
        for unit, (received, on_its_way) in zip(reversed(self.units), self.gradients_before(), strict=False):
            gradients = self.compute_itemsize * sum(unit.sizes)
            copied = 0 if unit.is_sent_as_it_is else self.compute_itemsize * unit.elements
            most = max(most, received + on_its_way, received + gradients + max(on_its_way, copied))
        return max(most, sum(self.gradients_before()[-1]))

    def gradients_before(self) -> list[tuple[int, int]]:
        """Count the bytes of other units' gradients before each unit's backward pass, last unit first, and after all.

        Each entry has two counts: the pieces of the units after it; and what is being sent, which is the buffer of the
        unit just after it, plus its piece as received if that needs converting.
        """
        found, received = [(0, 0)], 0
        for unit in reversed(self.units):
            received += self.itemsize * unit.piece
            converted = self.compute_itemsize * unit.piece if self.compute_itemsize != self.itemsize else 0
            found.append((received, self.compute_itemsize * unit.elements + converted))
        return found

    @property
    def collective_bytes(self) -> dict[str, int]:
        """Count the payload bytes of a step by collective.

        Each unit is gathered for the forward pass and again for the backward pass, except the last two of the forward
        pass, which are still there. Gradients are sent once; those of replicated parameters are all-reduced.
        """
        forward = [*range(len(self.units)), *([0] if self.is_tied else [])]
        held: dict[int, int] = {}
        gathered = 0
        for number in (*forward, *reversed(forward)):
            if held.get(number % BUFFERS_GATHERED) != number:
                held[number % BUFFERS_GATHERED] = number
                gathered += self.units[number].elements
        return {
            "allgather_base": self.compute_itemsize * gathered,
            "reduce_scatter_base": self.compute_itemsize * sum(unit.elements for unit in self.units),
            "allreduce": self.itemsize * self.replicated,
        }

    def exposed_s(self, sent_bytes: float, bytes_per_s: float, computation_s: float) -> float:
        """Predict the seconds of a step in which ranks communicate and nothing computes.

        sent_bytes: what each rank sends in a step; bytes_per_s: the bus bandwidth. Nothing computes while the first
        unit is gathered, nor while its gradients, the last to be ready, are scattered. All other communication overlaps
        computation and is exposed only if it takes longer.
        """
        at_ends = 2 * self.compute_itemsize * self.units[0].elements * all_gather_bus_factor(self.units[0].world_size)
        between_s = (sent_bytes - at_ends) / bytes_per_s
        return at_ends / bytes_per_s + max(between_s - computation_s, 0.0)
