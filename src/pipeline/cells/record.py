"""The record: the JSON file that a cell leaves, written whole or not at all."""

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pipeline
from pipeline.cells import fields
from pipeline.cells.disk import WholeFile, files_below
from pipeline.cells.scheduler import SlurmJob
from pipeline.cells.stage import Stage, Stages
from pipeline.cells.yaml_files import file_content, schema_complaint
from pipeline.errors import UserError
from pipeline.instruments.machine import identity

SCHEMA_VERSION = 3
SCHEMA = Path(__file__).with_name("record.schema.json")
# Limits to what is read, for it may be anyone's. Full runs on GPUs have hundreds of records, of at most 200 kB each.
MOST_RECORD_BYTES = 16 * 2**20
MOST_INTEGER = 2**63 - 1  # what a table can hold
MOST_ARCHIVE_BYTES = 256 * 2**20
MOST_ARCHIVE_MEMBERS = 20_000
# What a record tells of how busy the host was, and of the scheduler's job, where there was one.
HOST_PARTS = ("cores", "others_cores", "busy", "load_before", "load_after")
SCHEDULER_PARTS = ("name", "job", "nodes")
REMEDY = "measure it again (delete the file and repeat the command)"

# Records without their rows, by path, time and size of the file.
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
    """Return a record; started_at: seconds of the epoch; parts: the others of `record.schema.json`."""
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


def write_record(file: WholeFile, record: dict[str, Any]) -> None:
    """Write a record as JSON; a non-finite value is a bug, not a value, and raises ValueError."""
    file.write(json.dumps(record, indent=1, allow_nan=False) + "\n")


def read_record(path: Path, stages: Stages) -> dict[str, Any]:
    """Read a record of one of these stages; its rows have their derived columns.

    Raises UserError, one line, where it is not whole, of another version, of an unknown stage, or has an unsound row.
    """
    return parse_complete(file_content(path, MOST_RECORD_BYTES), str(path), stages)


def read_head(path: Path, stages: Stages) -> dict[str, Any]:
    """Return a record without its rows: it is read once for as long as its file stays as it is; see `read_record`."""
    try:
        file = path.stat()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    key = (path.absolute(), file.st_mtime_ns, file.st_size)
    if key not in _heads:
        record = parse_record(file_content(path, MOST_RECORD_BYTES), str(path), stages)
        _heads[key] = {name: part for name, part in record.items() if name != "rows"}
    return _heads[key]


def parse_record(content: bytes, name: str, stages: Stages) -> dict[str, Any]:
    """Parse a record, or its beginning, that messages call `name`, its rows as recorded; raises as `read_record`."""
    if len(content) > MOST_RECORD_BYTES:
        raise UserError(f"{name} is no record: it is larger than {MOST_RECORD_BYTES / 2**20:.0f} MiB")
    try:
        record = json.loads(content.decode(), parse_int=_integer, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is no record: {error}") from None
    if not isinstance(record, dict) or "schema_version" not in record:
        raise UserError(f"{name} is no record: it has no schema_version")
    if record["schema_version"] != SCHEMA_VERSION:
        found = json.dumps(record["schema_version"])[:60]
        raise UserError(
            f"{name} has schema_version {found}, this version of the pipeline reads {SCHEMA_VERSION}: {REMEDY}"
        )
    complaint = _complaint(record, stages)
    if complaint is not None:
        raise UserError(f"{name} is no record: {complaint}: {REMEDY}")
    return record


def parse_complete(content: bytes, name: str, stages: Stages) -> dict[str, Any]:
    """Parse a record that messages call `name`; its rows have their derived columns. Raises as `read_record` does."""
    record = parse_record(content, name, stages)
    try:
        return with_derived(record, stages)
    except ValueError as error:
        raise UserError(f"{name} is no record: {error}: {REMEDY}") from None


def with_derived(record: dict[str, Any], stages: Stages) -> dict[str, Any]:
    """Return a sound record whose rows have their derived columns; raises ValueError where one cannot be made."""
    stage = stages[record["stage"]]
    cell = fields.build(stage.cell_type, record["cell"], "its cell")
    return record | {"rows": stage.row_types.complete(cell, record["settings"], record["machine"], record["rows"])}


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no finite number")
    return number


def _integer(text: str) -> int:
    _finite(text)  # also what is too long to be read
    number = int(text)
    if abs(number) > MOST_INTEGER:
        raise ValueError(f"{text[:20]} is no number of 64 bits")
    return number


def _complaint(record: dict[str, Any], stages: Stages) -> str | None:
    """Say what keeps a record from being read, by the schema of all records, then by what its stage declares."""
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
    """Tell whether a record's file has lost all that it held: nothing is lost where it is measured again."""
    return path.is_file() and path.stat().st_size == 0


def cell_name(record: Mapping[str, Any]) -> str:
    """Return what a record is of, as one line: its stage and the values of its axes."""
    return " ".join([record["stage"], *(f"{axis}={fields.text(value)}" for axis, value in record["cell"].items())])


def has_failed(record: Mapping[str, Any]) -> bool:
    """Tell whether a record, with or without its rows, is of a cell that crashed or was killed."""
    return "log" in record


def record_paths(results: Path, stage: str = "*") -> Iterator[Path]:
    """Yield the records of a results folder, of one stage or of all, in a stable order."""
    for cells in sorted(results.glob(f"{stage}/cells")):
        yield from files_below(cells, ".json")
