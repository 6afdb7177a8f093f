"""Divide items of different sizes evenly, such as an optimizer's parameters among the ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor


def least_loaded(sizes: list[int], loads: list[int]) -> list[int]:
    """Assign each item, largest first, to the bin with the smallest load; return the bin of each.

    Adds the sizes to `loads`. Ties go to the earlier item and the lower bin, so that the result depends on the
    arguments alone. Largest first stays within 4/3 of the smallest possible maximum load (Graham 1969).
    """
    bins = [0] * len(sizes)
    for position in sorted(range(len(sizes)), key=lambda position: -sizes[position]):
        lightest = min(range(len(loads)), key=loads.__getitem__)
        bins[position] = lightest
        loads[lightest] += sizes[position]
    return bins


@dataclass(frozen=True, eq=False)
class Partition:
    """Which rank updates which parameter, and how many trained and frozen elements each rank has."""

    owners: dict[Tensor, int]
    trained_elements: tuple[int, ...]
    frozen_elements: tuple[int, ...]

    @classmethod
    def empty(cls, world_size: int) -> Self:
        """Return a partition of no parameters."""
        return cls({}, (0,) * world_size, (0,) * world_size)

    def with_added(self, parameters: Sequence[Tensor]) -> Self:
        """Return the partition with more parameters assigned.

        Trained parameters are divided evenly first, because only they have state; then the frozen ones, so that the
        total stays even if they are trained later.
        """
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        frozen = [parameter for parameter in parameters if not parameter.requires_grad]
        trained_elements = list(self.trained_elements)
        trained_owners = least_loaded([parameter.numel() for parameter in trained], trained_elements)
        elements = [sum(pair) for pair in zip(trained_elements, self.frozen_elements, strict=True)]
        frozen_owners = least_loaded([parameter.numel() for parameter in frozen], elements)
        owners = self.owners | dict(zip(trained + frozen, trained_owners + frozen_owners, strict=True))
        frozen_elements = (both - part for both, part in zip(elements, trained_elements, strict=True))
        return type(self)(owners, tuple(trained_elements), tuple(frozen_elements))
