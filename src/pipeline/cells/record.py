"""The record: the JSON file that a cell leaves, written whole or not at all."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.cells import fields
from pipeline.cells.disk import WholeFile, files_below
from pipeline.cells.stage import Stages
from pipeline.errors import UserError
from pipeline.instruments.machine.identity import SOFTWARE

SCHEMA_VERSION = 2
# Limits to what is read, for it may be anyone's. Full runs on GPUs have hundreds of records, of at most 200 kB each.
MOST_RECORD_BYTES = 16 * 2**20
MOST_DEPTH = 10
MOST_ARCHIVE_BYTES = 256 * 2**20
MOST_ARCHIVE_MEMBERS = 20_000
# What tables and reports rely on, with the types.
PARTS = {
    "stage": str,
    "cell": dict,
    "settings": dict,
    "rows": list,
    "machine": dict,
    "code": dict,
    "command": str,
    "process": str,
    "started_at": str,
    "seconds": dict,
}
# Of how busy the host was, which records of earlier versions do not tell.
HOST_PARTS = {
    "cores": int | float,
    "others_cores": int | float | None,
    "busy": bool,
    "load_before": int | float,
    "load_after": int | float,
}
# Of the scheduler's job, where there was one.
SCHEDULER_PARTS = {"name": str, "job": str, "nodes": str}
# Files of these names are read.
MODULE_NAME = re.compile(r"pipeline(\.\w+)*", re.ASCII)
MACHINE_PARTS = {"kind": str, "software": dict}
REMEDY = "measure it again (delete the file and repeat the command)"
TYPE_NAMES = {
    str: "text",
    dict: "an object",
    list: "a list",
    bool: "true or false",
    int | float: "a number",
    int | float | None: "a number or null",
}

# Records without their rows, by path, time and size of the file.
_heads: dict[tuple[Path, int, int], dict[str, Any]] = {}


def write_record(file: WholeFile, record: dict[str, Any]) -> None:
    """Write a record as JSON; a non-finite figure is a bug, not a value, and raises ValueError."""
    file.write(json.dumps(record, indent=1, allow_nan=False) + "\n")


def read_record(path: Path, stages: Stages) -> dict[str, Any]:
    """Read a record of one of these stages.

    Raises UserError, one line, where it is damaged, incomplete, of another schema version or of an unknown stage, or
    where a row is not as its stage declares it.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for, a device never ends
        raise UserError(f"{path} is no record: it is no file")
    try:
        with path.open("rb") as file:
            return parse_record(file.read(MOST_RECORD_BYTES + 1), str(path), stages)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def read_head(path: Path, stages: Stages) -> dict[str, Any]:
    """Return a record without its rows: it is read once for as long as its file stays as it is; see `read_record`."""
    try:
        file = path.stat()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    key = (path.absolute(), file.st_mtime_ns, file.st_size)
    if key not in _heads:
        _heads[key] = {name: part for name, part in read_record(path, stages).items() if name != "rows"}
    return _heads[key]


def parse_record(content: bytes, name: str, stages: Stages) -> dict[str, Any]:
    """Parse a record that messages call `name`; of a file that is too large its first part is enough.

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
    if record["schema_version"] not in (1, SCHEMA_VERSION):
        raise UserError(
            f"{name} has schema_version {_brief(record['schema_version'])}, this version of the pipeline reads "
            f"1 and {SCHEMA_VERSION}: {REMEDY}"
        )
    complaint = next(_complaints(record), None)
    if complaint is None:
        if record["schema_version"] == 1:
            _upgrade(record)
        complaint = next(_stage_complaints(record, stages), None)
    if complaint is not None:
        raise UserError(f"{name} is no record: {complaint}: {REMEDY}")
    return record


def _upgrade(record: dict[str, Any]) -> None:
    """Give the rows of a record of version 1 the names that version 2 has."""
    for row in record["rows"]:
        if "pass" in row:
            row["phase"] = row.pop("pass")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no finite number")
    return number


def _integer(text: str) -> int:
    _finite(text)  # also what is too long to be read
    return int(text)


def _is_flat(value: Any, levels: int) -> bool:
    """Tell whether objects and lists are nested at most so many deep."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    if inner is None:
        return True
    return levels > 0 and all(_is_flat(each, levels - 1) for each in inner if isinstance(each, dict | list))


def _complaints(record: dict[str, Any]) -> Iterator[str]:
    """Yield what keeps a record from being read, the outer parts first: an inner one is looked at in a sound outer."""
    yield from _part_complaints(record, PARTS)
    yield from _part_complaints(record["machine"], MACHINE_PARTS, "machine.")
    yield from _part_complaints(record["machine"]["software"], dict.fromkeys(SOFTWARE, str), "machine.software.")
    yield from _code_complaints(record["code"])
    yield from _environment_complaints(record["code"])
    yield from _subject_complaints(record.get("subjects", []))
    if "host" in record:
        yield from _part_complaints(record, {"host": dict})
        yield from _part_complaints(record["host"], HOST_PARTS, "host.")
    if "scheduler" in record:
        yield from _part_complaints(record, {"scheduler": dict})
        yield from _part_complaints(record["scheduler"], SCHEDULER_PARTS, "scheduler.")
    if not record["rows"]:
        yield "it has no row"
    for number, row in enumerate(record["rows"], start=1):
        if not isinstance(row, dict):
            yield f"row {number} must be an object, got {_brief(row)}"


def _stage_complaints(record: dict[str, Any], stages: Stages) -> Iterator[str]:
    """Yield where a sound record is not as its stage declares cells and rows."""
    stage = stages.get(record["stage"])
    if stage is None:
        yield f"stage must be one of {', '.join(stages)}, got {_brief(record['stage'])}"
        return
    try:
        cell = fields.build(stage.cell_type, record["cell"], "its cell")
        stage.row_types.check(asdict(cell), record["rows"])
    except (UserError, ValueError) as error:
        yield str(error)
    for name, value in record["settings"].items():
        if isinstance(value, dict | list):
            yield f"settings.{name} must be text, a number, true or false, got {_brief(value)}"


def _code_complaints(code: dict[str, Any]) -> Iterator[str]:
    yield from _part_complaints(code, {"digest": str}, "code.")
    if "modules" not in code:  # as in records of earlier versions
        return
    yield from _part_complaints(code, {"modules": dict}, "code.")
    for name, digest in code["modules"].items():
        if not MODULE_NAME.fullmatch(name):
            yield f"code.modules must name modules, got {_brief(name)}"
        if not isinstance(digest, str):
            yield f"code.modules.{name} must be text, got {_brief(digest)}"


def _environment_complaints(code: dict[str, Any]) -> Iterator[str]:
    yield from _part_complaints({"environment": {}, **code}, {"environment": dict}, "code.")
    for name, value in code.get("environment", {}).items():
        if not isinstance(value, str):
            yield f"code.environment.{_brief(name)} must be text, got {_brief(value)}"


def _subject_complaints(subjects: Any) -> Iterator[str]:
    if not isinstance(subjects, list):
        yield f"subjects must be a list, got {_brief(subjects)}"
        return
    for number, subject in enumerate(subjects, start=1):
        if not isinstance(subject, dict) or not all(isinstance(each, str) for each in subject.values()):
            yield f"subject {number} must be an object of texts, got {_brief(subject)}"
        elif not {"kind", "name", "digest"} <= subject.keys():
            yield f"subject {number} has no kind, name or digest"


def _part_complaints(part: dict[str, Any], types: dict[str, Any], prefix: str = "") -> Iterator[str]:
    missing = [f"{prefix}{name}" for name in types if name not in part]
    if missing:
        yield f"it has no {', '.join(missing)}"
    for name, kind in types.items():
        if not isinstance(part[name], kind):
            yield f"{prefix}{name} must be {TYPE_NAMES[kind]}, got {_brief(part[name])}"


def _brief(value: Any) -> str:
    return json.dumps(value)[:60]


def is_empty(path: Path) -> bool:
    """Tell whether a record's file has lost all that it held: nothing is lost where it is measured again."""
    return path.is_file() and path.stat().st_size == 0


def record_paths(results: Path, stage: str = "*") -> Iterator[Path]:
    """Yield the records of a results folder, of one stage or of all, in a stable order."""
    for cells in sorted(results.glob(f"{stage}/cells")):
        yield from files_below(cells, ".json")
