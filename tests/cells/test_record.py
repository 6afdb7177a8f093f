import copy
import functools
import json
import os

import pytest

from pipeline.cells.disk import AtomicFile
from pipeline.cells.record import (
    MOST_RECORD_BYTES,
    parse_raw,
    parse_record,
    read_record,
    with_derived,
    write_record,
)
from pipeline.cells.rows import RECORDED_STATUSES
from pipeline.registry import stages

from ..complaints import complaint
from ..records import CPU, record, timed_row

RECORD = record()
CODE = RECORD["code"]


@pytest.mark.parametrize("others_cores", [0.5, None])
def test_a_record_is_read_back_as_written(tmp_path, others_cores):
    host = {"cores": 2.0, "others_cores": others_cores, "busy": False, "load_before": 0.25, "load_after": 1}
    written = RECORD | {"host": host}
    write_record(AtomicFile(tmp_path / "deep/cell.json"), written)
    assert read_record(tmp_path / "deep/cell.json", stages()) == with_derived(written, stages())


def test_writing_nan_is_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_record(AtomicFile(tmp_path / "cell.json"), {**RECORD, "rows": [{"median_ms": float("nan")}]})
    assert not (tmp_path / "cell.json").exists()


def complaint_about(changed, parse=parse_raw):
    return complaint(parse, json.dumps(changed).encode(), "cell.json", stages())


@pytest.mark.parametrize("part", [*RECORD, "machine.kind", "machine.software", "machine.software.cuda", "code.digest"])
def test_a_missing_part_is_reported_with_file_and_remedy(part):
    changed, (*parents, name) = copy.deepcopy(RECORD), part.split(".")
    del functools.reduce(dict.__getitem__, parents, changed)[name]
    remedy = ": measure it again (delete the file and repeat the command)" if part != "schema_version" else ""
    assert complaint_about(changed) == f"cell.json is not a valid record: it has no {part}{remedy}"


# Parts that tables, pages and `compare` rely on, each with an invalid value.
@pytest.mark.parametrize(
    ("part", "value"),
    [
        *(("seconds", RECORD["seconds"] | part) for part in ({"measuring": -1}, {"measuring": "long"}, {"x": 1})),
        ("started_at", "yesterday"),
        *(("machine", CPU | part) for part in ({"gpus_taken": "GPU-a"}, {"kind": ""}, {"gpus": ["H200"]})),
        *(("machine", CPU | part) for part in ({"cpu": "a CPU"}, {"memory_bytes": "8 GB"})),
        ("settings", {"steps": [1]}),
        ("cell", {"size": None}),
        *(("code", CODE | part) for part in ({"commit": 7}, {"environment": {"PIPELINE_ATTENTION": 1}})),
        *(("code", CODE | {"modules": {name: "a"}}) for name in ("pipeline/../secrets", "os.path")),
        ("code", CODE | {"modules": {"pipeline.model": 1}}),
        ("host", {"cores": None}),
        ("scheduler", {"name": "slurm", "job": 7, "nodes": "n1"}),
        *(("subjects", [{"kind": "attention", **part}]) for part in ({"digest": "3"}, {"name": "mine", "digest": 3})),
        ("subjects", ["mine"]),
        *((name, None) for name in RECORD if name != "schema_version"),
    ],
)
def test_an_invalid_part_is_reported_by_its_place(part, value):
    message = complaint_about({**RECORD, part: value})
    assert message.startswith("cell.json is not a valid record: ")
    assert part in message


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "rows: [] should be non-empty"),
        (["ok"], 'rows.0 must be an object, got "ok"'),
        ([timed_row(), {"phase": "backward"}], f"row 2: status must be one of {', '.join(RECORDED_STATUSES)}"),
        ([timed_row(peak_bytes=-1)], "row 1: peak_bytes must be a whole number, at least 0, got -1"),
        ([timed_row(median_ms=1.0)], "row 1: unknown column 'median_ms': must be one of "),
        ([timed_row(samples_ms=[0.0] * 3)], "row 1: its derived columns cannot be computed"),
        ([timed_row(size="../..")], "row 1: unknown column 'size': must be one of "),
        ([timed_row(), timed_row()], "row 2 has the same keys as row 1: mode=eager phase=forward clock=host"),
    ],
)
def test_an_invalid_row_is_reported_by_its_number(rows, message):
    assert f"cell.json is not a valid record: {message}" in complaint_about({**RECORD, "rows": rows}, parse_record)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 200_000, "is not a valid record: maximum recursion depth exceeded"),
        (
            json.dumps(RECORD | {"settings": {"a": 10**400}}).encode(),
            "is not a valid record: 10000000000000000000 is not a finite",
        ),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not a valid record: 99999999999999999999 is not a finite number"),
        (b'{"a": 99999999999999999999}', "is not a valid record: 99999999999999999999 does not fit into 64 bits"),
        (b'{"a": -1e400}', "is not a valid record: -1e400 is not a finite number"),
        (b'{"a": NaN}', "is not a valid record: NaN is not a finite number"),
        (b"null", "is not a valid record: it has no schema_version"),
        (b"[]", "is not a valid record: it has no schema_version"),
        (b'{"schema_version": 99}', "has schema_version 99"),
        (b'{"schema_version": 3, "ro', "is not a valid record: "),
        ("{}".encode("utf-16"), "is not a valid record: 'utf-8' codec can't decode byte 0xff in position 0"),
    ],
    ids=range(11),
)
def test_a_file_that_is_not_a_record_is_reported_in_one_line(tmp_path, content, message):
    path = tmp_path / "cell.json"
    path.write_bytes(content)
    assert complaint(read_record, path, stages()).startswith(f"{path} {message}")


def test_pipes_and_too_large_records_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    assert complaint(read_record, tmp_path / "pipe.json", stages()).endswith("it must be a plain file")
    too_large = complaint(parse_raw, b"x" * (MOST_RECORD_BYTES + 1), "cell.json", stages())
    assert too_large == "cell.json is not a valid record: it is larger than 16 MiB"
