"""About how long each cell of a plan takes, for the time that a run says is left."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.cells import sweep
from pipeline.cells.record import has_failed, read_head
from pipeline.cells.stage import Stage
from pipeline.errors import UserError
from pipeline.instruments.machine.cgroups import memory_limit_bytes

# Of a stage that does not say.
UNKNOWN_S = 10.0
# Of one that does not fit into the host's memory.
SKIPPED_S = 0.5
PARTS = ("start_up", "set_up", "measuring")


def expected_s(stage: Stage, cells: Mapping[Path, Any], settings: Any, on_gpu: bool) -> dict[str, float]:
    """Return the seconds expected of each cell, by the path of its record.

    That is what it took before with these settings, where there is such a record, else what its stage says of it.
    """

    def cell_s(path: Path, cell: Any) -> float:
        if not on_gpu and stage.needed_bytes(cell, settings) > memory_limit_bytes():
            return SKIPPED_S
        before_s = _taken_s(path, stage, settings)
        told_s = stage.expected_s(cell, settings, on_gpu) if before_s is None else before_s
        return UNKNOWN_S if told_s is None else told_s

    return {str(path): cell_s(path, cell) for path, cell in cells.items()}


def quickest_grid(
    stage: Stage, grids: Iterable[Mapping[str, Any]], axis: str, value: Any, settings: Any, on_gpu: bool
) -> list[Any]:
    """Return the cells of the grid that takes the least time with this one value on an axis.

    Raises UserError, one line, where there is no grid, or none takes the value.
    """
    found, complaint = [], UserError(f"{stage.name} has no grid")
    for grid in grids:
        try:
            found.append(sweep.expand(stage.cell_type, [{**grid, axis: [value]}], stage.name))
        except UserError as error:  # another axis of this grid does not go with it
            complaint = error
    if not found:
        raise complaint
    return min(found, key=lambda cells: sum(stage.expected_s(cell, settings, on_gpu) or UNKNOWN_S for cell in cells))


def _taken_s(path: Path, stage: Stage, settings: Any) -> float | None:
    """Return the seconds that a cell took by its record; None where there is none of use."""
    if not path.exists():
        return None
    try:
        record = read_head(path, {stage.name: stage})
    except UserError:
        return None
    parts = [record["seconds"].get(name) for name in PARTS]
    if (
        has_failed(record)
        or record["settings"] != asdict(settings)
        or not all(isinstance(part, int | float) for part in parts)
    ):
        return None
    return sum(parts) if math.isfinite(sum(parts)) else None
