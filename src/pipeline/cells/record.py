"""Write, read and check records: the JSON file that each cell leaves, written completely or not at all."""

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pipeline
from pipeline.cells import fields
from pipeline.cells.disk import AtomicFile, files_below
from pipeline.cells.scheduler import SlurmJob
from pipeline.cells.stage import Stage, Stages
from pipeline.cells.yaml_files import file_content, schema_complaint
from pipeline.errors import UserError
from pipeline.instruments.machine import identity

SCHEMA_VERSION = 3
SCHEMA = Path(__file__).with_name("record.schema.json")
# Limits on what is read, since it may come from anyone. A record has at most 200 kB.
MOST_RECORD_BYTES = 16 * 2**20
MOST_INTEGER = 2**63 - 1  # the largest that a table can hold
REMEDY = "measure it again (delete the file and repeat the command)"

# Cache of records without their rows, by the file's path, mtime and size.
_heads: dict[tuple[Path, int, int], dict[str, Any]] = {}


def new_record(
    stage: Stage,
    cell: Any,
    settings: Any,
    rows: list[dict[str, Any]],
    job: SlurmJob | None,
    started_at: float,
    code: Mapping[str, Any],
    **parts: Any,
) -> dict[str, Any]:
    """Return a record; started_at: seconds since the epoch; parts: the remaining keys of `record.schema.json`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "stage": stage.name,
        "cell": asdict(cell),
        "settings": asdict(settings),
        "rows": rows,
        **({"scheduler": {"name": "slurm", "job": job.number, "nodes": job.nodes}} if job else {}),
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started_at)),
        "code": {**code, "commit": identity.git_commit(Path(pipeline.__file__).parent)},
        **parts,
    }


def write_record(file: AtomicFile, record: dict[str, Any]) -> None:
    """Write a record as JSON; raises ValueError for NaN or infinity, which would be a bug."""
    file.write(json.dumps(record, indent=1, allow_nan=False) + "\n")


def read_record(path: Path, stages: Stages) -> dict[str, Any]:
    """Read a record of one of these stages and add the derived columns of its rows.

    Raises UserError, one line, if it is incomplete, of another version or an unknown stage, or has an invalid row.
    """
    return parse_record(file_content(path, MOST_RECORD_BYTES), str(path), stages)


def read_head(path: Path, stages: Stages) -> dict[str, Any]:
    """Return a record without its rows, cached until its file changes; raises as `read_record`."""
    try:
        file = path.stat()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    key = (path.absolute(), file.st_mtime_ns, file.st_size)
    if key not in _heads:
        record = parse_raw(file_content(path, MOST_RECORD_BYTES), str(path), stages)
        _heads[key] = {name: part for name, part in record.items() if name != "rows"}
    return _heads[key]


def parse_raw(content: bytes, name: str, stages: Stages) -> dict[str, Any]:
    """Parse a record that messages call `name`; its rows stay as recorded. Raises as `read_record` does."""
    if len(content) > MOST_RECORD_BYTES:
        raise UserError(f"{name} is not a valid record: it is larger than {MOST_RECORD_BYTES / 2**20:.0f} MiB")
    try:
        record = json.loads(content.decode(), parse_int=_integer, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is not a valid record: {error}") from None
    if not isinstance(record, dict) or "schema_version" not in record:
        raise UserError(f"{name} is not a valid record: it has no schema_version")
    if record["schema_version"] != SCHEMA_VERSION:
        found = json.dumps(record["schema_version"])[:60]
        raise UserError(
            f"{name} has schema_version {found}, this version of the pipeline reads {SCHEMA_VERSION}: {REMEDY}"
        )
    complaint = _complaint(record, stages)
    if complaint is not None:
        raise UserError(f"{name} is not a valid record: {complaint}: {REMEDY}")
    return record


def parse_record(content: bytes, name: str, stages: Stages) -> dict[str, Any]:
    """Parse a record that messages call `name` and add its rows' derived columns; raises as `read_record`."""
    record = parse_raw(content, name, stages)
    try:
        return with_derived(record, stages)
    except ValueError as error:
        raise UserError(f"{name} is not a valid record: {error}: {REMEDY}") from None


def with_derived(record: dict[str, Any], stages: Stages) -> dict[str, Any]:
    """Return a valid record with its rows' derived columns added; raises ValueError if one cannot be computed."""
    stage = stages[record["stage"]]
    cell = fields.build(stage.cell_type, record["cell"], "its cell")
    return record | {"rows": stage.row_types.complete(cell, record["settings"], record["machine"], record["rows"])}


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


def _integer(text: str) -> int:
    _finite(text)  # also rejects integers too long for int()
    number = int(text)
    if abs(number) > MOST_INTEGER:
        raise ValueError(f"{text[:20]} does not fit into 64 bits")
    return number


def _complaint(record: dict[str, Any], stages: Stages) -> str | None:
    """Return why a record is invalid, by the schema of all records, then by its stage's declarations; else None."""
    if complaint := schema_complaint(record, SCHEMA):
        return complaint
    stage = stages.get(record["stage"])
    if stage is None:
        return f"stage must be one of {', '.join(stages)}, got {json.dumps(record['stage'])[:60]}"
    try:
        stage.row_types.check(asdict(fields.build(stage.cell_type, record["cell"], "its cell")), record["rows"])
    except (UserError, ValueError) as complaint:
        return str(complaint)
    return None


def is_empty(path: Path) -> bool:
    """Tell whether a record's file is empty, so that measuring its cell again loses nothing."""
    return path.is_file() and path.stat().st_size == 0


def cell_name(record: Mapping[str, Any]) -> str:
    """Return a record's stage and axis values as one line."""
    return " ".join([record["stage"], *(f"{axis}={fields.text(value)}" for axis, value in record["cell"].items())])


def has_failed(record: Mapping[str, Any]) -> bool:
    """Tell whether a record, with or without its rows, is of a cell that crashed or was killed."""
    return "log" in record


def record_paths(results: Path, stage: str = "*") -> Iterator[Path]:
    """Yield the paths of a results folder's records, of one stage or all, in a stable order."""
    for cells in sorted(results.glob(f"{stage}/cells")):
        yield from files_below(cells, ".json")
