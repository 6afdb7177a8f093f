"""The record: the JSON file that a cell leaves, written whole or not at all."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.errors import UserError

SCHEMA_VERSION = 1


def write_text(path: Path, content: str) -> None:
    """Write a file through a temporary one beside it and a rename, so that no reader sees a part of it.

    Raises UserError, one line, where the place cannot be written or the disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a record as JSON; a non-finite figure is a bug, not a value, and raises ValueError."""
    write_text(path, json.dumps(record, indent=1, allow_nan=False) + "\n")


def read_record(path: Path) -> dict[str, Any]:
    """Read a record; raises UserError where it is damaged or of another schema version."""
    try:
        return parse_record(path.read_text(), str(path))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no record: {error}") from None


def parse_record(content: str, name: str) -> dict[str, Any]:
    """Parse a record that messages call `name`; raises UserError where it is damaged or of another schema version."""
    try:
        record = json.loads(content)
    except ValueError as error:
        raise UserError(f"{name} is no record: {error}") from None
    if not isinstance(record, dict) or "schema_version" not in record:
        raise UserError(f"{name} is no record: it has no schema_version")
    if record["schema_version"] != SCHEMA_VERSION:
        raise UserError(
            f"{name} has schema_version {record['schema_version']}, this version of the pipeline reads "
            f"{SCHEMA_VERSION}: measure it again (delete the file and repeat the command)"
        )
    return record


def record_paths(results: Path, stage: str = "*") -> Iterator[Path]:
    """Yield the records of a results folder, of one stage or of all, in a stable order."""
    yield from sorted(results.glob(f"{stage}/cells/**/*.json"))
