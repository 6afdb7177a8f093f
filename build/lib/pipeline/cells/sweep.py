"""Sweeps: grids of axes expanded into cells."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.cells import fields


def expand(cell_type: Any, grids: Iterable[Mapping[str, Any]], where: str) -> list[Any]:
    """Expand grids, each a cartesian product of the axes it lists, into distinct cells in their order.

    An axis left out of a grid takes its default, so a study along another axis is a second grid.
    Raises UserError, which calls the grids `where`, for an unknown axis or a value that it does not take.
    """
    cells: dict[Any, None] = {}
    for grid in grids:
        axes = {axis: values if isinstance(values, list) else [values] for axis, values in grid.items()}
        for point in itertools.product(*axes.values()):
            cells[fields.build(cell_type, dict(zip(axes, point, strict=True)), where)] = None
    return list(cells)
