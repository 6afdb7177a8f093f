"""The model sizes in reading order: the smallest first, by the parameters of their layers."""

from collections.abc import Iterable

from pipeline.formulas.parameters import block_parameter_count
from pipeline.formulas.sizes import SIZES


def by_size(names: Iterable[str]) -> list[str]:
    """Sort the names of sizes, the user's own among them."""
    return sorted(names, key=lambda name: SIZES[name].num_layers * block_parameter_count(SIZES[name]))


BY_SIZE = tuple(by_size(SIZES))
