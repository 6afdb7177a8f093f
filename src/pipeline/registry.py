"""The list of stages, in the order of the assignment and of the write-up."""

import pkgutil
from functools import cache
from pathlib import Path

from pipeline.cells.stage import Stage, Stages
from pipeline.errors import UserError

NAMES = (
    "ceilings",
    "health",
    "timing",
    "levers",
    "profile",
    "precision",
    "memory",
    "attention",
    "flash",
    "ops",
    "collectives",
    "ddp",
    "sharding",
    "fsdp",
    "tensor_parallel",
    "step8b",
    "accounting",
)
FOLDER = Path(__file__).parent / "stages"


@cache
def stages() -> Stages:
    """Return every stage by its name; raises UserError, one line, if NAMES and the folders differ."""
    folders = [module.name for module in pkgutil.iter_modules([str(FOLDER)]) if module.ispkg]
    for name in folders:
        if name not in NAMES:
            raise UserError(f"{FOLDER / name}/ is not registered: add '{name}' to NAMES in {__file__}")
    for name in NAMES:
        if name not in folders:
            raise UserError(f"NAMES in {__file__} lists '{name}', but {FOLDER / name}/__init__.py does not exist")
    return {name: Stage(name, f"pipeline.stages.{name}") for name in NAMES}


def stage(name: str) -> Stage:
    """Return a stage by its name; raises UserError, one line, for an unknown name."""
    if name not in stages():
        raise UserError(f"unknown stage '{name}': must be one of {', '.join(NAMES)}")
    return stages()[name]
