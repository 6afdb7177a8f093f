"""Whether a folder can be written, known before hours of measuring end at it."""

import os
from pathlib import Path

from pipeline.errors import UserError


def check_writable(folder: Path) -> None:
    """Raise UserError, one line, unless this user can write into a folder, or make it where it is missing."""
    place = folder.absolute()
    existing = next(path for path in (place, *place.parents) if path.exists())
    if not existing.is_dir():
        raise UserError(f"{folder}/ cannot be written: {existing} is no folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"{folder}/ cannot be written: {existing} is read-only for this user")
