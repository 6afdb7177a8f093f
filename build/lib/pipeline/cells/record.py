"""The record: the JSON file that a cell leaves, written whole or not at all."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from pipeline.cells import fields
from pipeline.cells.disk import WholeFile, files_below
from pipeline.cells.stage import Stages
from pipeline.errors import UserError

SCHEMA_VERSION = 3
SCHEMA = Path(__file__).with_name("record.schema.json")
# Limits to what is read, for it may be anyone's. Full runs on GPUs have hundreds of records, of at most 200 kB each.
MOST_RECORD_BYTES = 16 * 2**20
MOST_DEPTH = 10
MOST_INTEGER = 2**63 - 1  # what a table can hold
MOST_ARCHIVE_BYTES = 256 * 2**20
MOST_ARCHIVE_MEMBERS = 20_000
# What a record tells of how busy the host was, and of the scheduler's job, where there was one.
HOST_PARTS = ("cores", "others_cores", "busy", "load_before", "load_after")
SCHEDULER_PARTS = ("name", "job", "nodes")
REMEDY = "measure it again (delete the file and repeat the command)"
TYPE_NAMES = {
    "string": "text",
    "object": "an object",
    "array": "a list",
    "boolean": "true or false",
    "number": "a number",
    "integer": "a whole number",
    "null": "null",
}

# Records without their rows, by path, time and size of the file.
_heads: dict[tuple[Path, int, int], dict[str, Any]] = {}


def write_record(file: WholeFile, record: dict[str, Any]) -> None:
    """Write a record as JSON; a non-finite figure is a bug, not a value, and raises ValueError."""
    file.write(json.dumps(record, indent=1, allow_nan=False) + "\n")


def read_record(path: Path, stages: Stages) -> dict[str, Any]:
    """Read a record of one of these stages; its rows have their derived columns.

    Raises UserError, one line, where it is damaged, incomplete, of another schema version or of an unknown stage, or
    where a row is not as its stage declares it.
    """
    return _complete(parse_record(_content(path), str(path), stages), str(path), stages)


def read_head(path: Path, stages: Stages) -> dict[str, Any]:
    """Return a record without its rows: it is read once for as long as its file stays as it is; see `read_record`."""
    try:
        file = path.stat()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    key = (path.absolute(), file.st_mtime_ns, file.st_size)
    if key not in _heads:
        record = parse_record(_content(path), str(path), stages)
        _heads[key] = {name: part for name, part in record.items() if name != "rows"}
    return _heads[key]


def _content(path: Path) -> bytes:
    """Return a file's content, of one that is too large as much as shows that."""
    if path.exists() and not path.is_file():  # a pipe would be waited for, a device never ends
        raise UserError(f"{path} is no record: it is no file")
    try:
        with path.open("rb") as file:
            return file.read(MOST_RECORD_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def parse_record(content: bytes, name: str, stages: Stages) -> dict[str, Any]:
    """Parse a record that messages call `name`, its rows as recorded; of a large file its first part is enough.

    Raises UserError as `read_record` does.
    """
    if len(content) > MOST_RECORD_BYTES:
        raise UserError(f"{name} is no record: it is larger than {MOST_RECORD_BYTES / 2**20:.0f} MiB")
    too_deep = UserError(f"{name} is no record: its objects and lists are nested more than {MOST_DEPTH} deep")
    try:
        record = json.loads(content.decode(), parse_int=_integer, parse_float=_finite, parse_constant=_finite)
    except ValueError as error:
        raise UserError(f"{name} is no record: {error}") from None
    except RecursionError:
        raise too_deep from None
    if not _is_flat(record, MOST_DEPTH):
        raise too_deep
    if not isinstance(record, dict) or "schema_version" not in record:
        raise UserError(f"{name} is no record: it has no schema_version")
    if record["schema_version"] != SCHEMA_VERSION:
        raise UserError(
            f"{name} has schema_version {_brief(record['schema_version'])}, this version of the pipeline reads "
            f"{SCHEMA_VERSION}: {REMEDY}"
        )
    complaint = next(_complaints(record, stages), None)
    if complaint is not None:
        raise UserError(f"{name} is no record: {complaint}: {REMEDY}")
    return record


def parse_complete(content: bytes, name: str, stages: Stages) -> dict[str, Any]:
    """Parse a record that messages call `name`; its rows have their derived columns. Raises as `read_record` does."""
    return _complete(parse_record(content, name, stages), name, stages)


def with_derived(record: dict[str, Any], stages: Stages) -> dict[str, Any]:
    """Return a sound record whose rows have their derived columns; raises ValueError where one cannot be made."""
    stage = stages[record["stage"]]
    cell = fields.build(stage.cell_type, record["cell"], "its cell")
    return record | {"rows": stage.row_types.complete(cell, record["settings"], record["machine"], record["rows"])}


def _complete(record: dict[str, Any], name: str, stages: Stages) -> dict[str, Any]:
    try:
        return with_derived(record, stages)
    except ValueError as error:
        raise UserError(f"{name} is no record: {error}: {REMEDY}") from None


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


def _is_flat(value: Any, levels: int) -> bool:
    """Tell whether objects and lists are nested at most so many deep."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    if inner is None:
        return True
    return levels > 0 and all(_is_flat(each, levels - 1) for each in inner if isinstance(each, dict | list))


def _complaints(record: dict[str, Any], stages: Stages) -> Iterator[str]:
    """Yield what keeps a record from being read: by the schema of all records, then by what its stage declares."""
    error = best_match(_validator().iter_errors(record))
    if error is not None:
        yield _schema_complaint(error)
        return
    stage = stages.get(record["stage"])
    if stage is None:
        yield f"stage must be one of {', '.join(stages)}, got {_brief(record['stage'])}"
        return
    try:
        stage.row_types.check(asdict(fields.build(stage.cell_type, record["cell"], "its cell")), record["rows"])
    except (UserError, ValueError) as complaint:
        yield str(complaint)


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


def _schema_complaint(error: ValidationError) -> str:
    """Say in a line what a part of a record must be."""
    part = ".".join(map(str, error.absolute_path)) or "it"
    value: Any = error.validator_value
    if error.validator == "required":
        instance: Any = error.instance
        missing = [name for name in value if name not in instance]
        return f"it has no {', '.join(name if part == 'it' else f'{part}.{name}' for name in missing)}"
    if error.validator == "type":
        kinds = [value] if isinstance(value, str) else value
        return f"{part} must be {' or '.join(TYPE_NAMES[kind] for kind in kinds)}, got {_brief(error.instance)}"
    return f"{part}: {error.message[:200]}"


def _brief(value: Any) -> str:
    return json.dumps(value)[:60]


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
