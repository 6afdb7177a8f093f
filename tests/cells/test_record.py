import copy
import functools
import json
import os

import pytest

from pipeline.cells.disk import WholeFile
from pipeline.cells.record import MOST_RECORD_BYTES, PARTS, parse_record, read_record, write_record
from pipeline.cells.rows import STATUSES
from pipeline.errors import UserError
from pipeline.registry import stages

from ..records import record, timed_row

RECORD = record()


def test_a_record_is_read_back_as_written(tmp_path):
    write_record(WholeFile(tmp_path / "deep/cell.json"), RECORD)
    assert read_record(tmp_path / "deep/cell.json", stages()) == RECORD


def test_a_figure_that_is_no_number_is_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_record(WholeFile(tmp_path / "cell.json"), {**RECORD, "rows": [{"median_ms": float("nan")}]})
    assert not (tmp_path / "cell.json").exists()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"schema_version": 1, "ro', "is no record"),
        (b"\xff\xfe", "is no record"),
        (b"[]", "it has no schema_version"),
        (b'{"schema_version": 99}', "has schema_version 99"),
    ],
)
def test_a_damaged_or_foreign_record_is_named(tmp_path, content, complaint):
    (tmp_path / "cell.json").write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        read_record(tmp_path / "cell.json", stages())


def without(path):
    changed = copy.deepcopy(RECORD)
    *parents, name = path.split(".")
    del functools.reduce(dict.__getitem__, parents, changed)[name]
    return changed


def complaint_about(changed):
    with pytest.raises(UserError) as raised:
        parse_record(json.dumps(changed).encode(), "cell.json", stages())
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("part", [*PARTS, "machine.kind", "machine.software", "machine.software.cuda", "code.digest"])
def test_a_part_that_a_record_lacks_is_named_with_file_and_remedy(part):
    remedy = "measure it again (delete the file and repeat the command)"
    assert complaint_about(without(part)) == f"cell.json is no record: it has no {part}: {remedy}"


@pytest.mark.parametrize("part", [*PARTS])
def test_a_part_of_another_type_is_named_with_what_is_allowed(part):
    assert f"cell.json is no record: {part} must be " in complaint_about({**RECORD, part: None})


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([], "it has no row"),
        (["ok"], 'row 1 must be an object, got "ok"'),
        ([timed_row(), {"phase": "backward"}], f"row 2: status must be one of {', '.join(STATUSES)}"),
        ([timed_row(median_ms=-1.0)], "row 1: median_ms must be a finite number above 0, got -1.0"),
        ([timed_row(size="../..")], "row 1: unknown column 'size': must be one of "),
        ([timed_row(), timed_row()], "row 2 is of the same as row 1: phase=forward clock=host"),
    ],
)
def test_a_row_that_no_table_can_hold_is_named_by_its_number(rows, complaint):
    assert f"cell.json is no record: {complaint}" in complaint_about({**RECORD, "rows": rows})


def test_a_record_of_another_stage_or_cell_is_named():
    assert "stage must be one of ceilings, timing, " in complaint_about(record(stage="timings"))
    assert "its cell: unknown key 'sizes'" in complaint_about(record(cell={"sizes": "xl"}))
    assert "settings.steps must be text, a number, true or" in complaint_about(record(settings={"steps": [1]}))


def test_a_record_of_version_1_is_read_with_the_names_of_today():
    row = timed_row()
    row["pass"] = row.pop("phase")
    older = json.dumps(record(schema_version=1, rows=[row])).encode()
    assert parse_record(older, "cell.json", stages())["rows"] == [timed_row()]


DAMAGED = {
    "200,000 brackets": (b"[" * 200_000, "its objects and lists are nested more than 10 deep"),
    "brackets in a record": (
        json.dumps({**RECORD, "settings": {"a": []}}).replace("[]", "[" * 500 + "]" * 500).encode(),
        "its objects and lists are nested more than 10 deep",
    ),
    "10^400": (json.dumps({**RECORD, "settings": {"a": 10**400}}).encode(), "10000000000000000000 is no finite number"),
    "5000 digits": (b'{"a": ' + b"9" * 5000 + b"}", "99999999999999999999 is no finite number"),
    "1e400": (b'{"a": -1e400}', "-1e400 is no finite number"),
    "NaN": (b'{"a": NaN}', "NaN is no finite number"),
    "larger than any": (b'"' + b"x" * MOST_RECORD_BYTES + b'"', "it is larger than 16 MiB"),
    "null": (b"null", "it has no schema_version"),
    "UTF-16": ("{}".encode("utf-16"), "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_file_that_no_cell_leaves_is_named_in_one_line(tmp_path, what):
    content, complaint = DAMAGED[what]
    path = tmp_path / "cell.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as raised:
        read_record(path, stages())
    assert str(raised.value) == f"{path} is no record: {complaint}"


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    for path in tmp_path.iterdir():
        with pytest.raises(UserError, match="is no record: it is no file"):
            read_record(path, stages())
    with pytest.raises(UserError, match=r"cannot read .*nowhere\.json: No such file"):
        read_record(tmp_path / "nowhere.json", stages())


HOST = {"cores": 2.0, "others_cores": 0.5, "busy": False, "load_before": 0.25, "load_after": 1}


@pytest.mark.parametrize("host", [HOST, {**HOST, "others_cores": None}])
def test_a_record_may_say_how_busy_the_host_was(host):
    assert parse_record(json.dumps({**RECORD, "host": host}).encode(), "cell.json", stages())["host"] == host


@pytest.mark.parametrize(
    ("host", "complaint"),
    [
        (None, "host must be an object, got null"),
        ({}, "it has no host.cores, host.others_cores, host.busy, host.load_before, host.load_after"),
        ({**HOST, "busy": "yes"}, 'host.busy must be true or false, got "yes"'),
        ({**HOST, "cores": None}, "host.cores must be a number, got null"),
        ({**HOST, "others_cores": "1"}, 'host.others_cores must be a number or null, got "1"'),
    ],
)
def test_what_a_record_says_of_the_host_is_checked(host, complaint):
    assert f"cell.json is no record: {complaint}: " in complaint_about({**RECORD, "host": host})


@pytest.mark.parametrize(
    ("scheduler", "complaint"),
    [
        (None, "scheduler must be an object, got null"),
        ({"name": "slurm"}, "it has no scheduler.job, scheduler.nodes"),
        ({"name": "slurm", "job": 7, "nodes": "n1"}, "scheduler.job must be text, got 7"),
    ],
)
def test_what_a_record_says_of_its_scheduler_s_job_is_checked(scheduler, complaint):
    assert f"cell.json is no record: {complaint}: " in complaint_about({**RECORD, "scheduler": scheduler})


@pytest.mark.parametrize(
    ("modules", "complaint"),
    [
        (["pipeline"], 'code.modules must be an object, got ["pipeline"]'),
        ({"pipeline/../secrets": "abc"}, 'code.modules must name modules, got "pipeline/../secrets"'),
        ({"os.path": "abc"}, 'code.modules must name modules, got "os.path"'),
        ({"pipeline.model": 1}, "code.modules.pipeline.model must be text, got 1"),
    ],
)
def test_modules_that_could_name_any_file_are_refused(modules, complaint):
    assert complaint in complaint_about({**RECORD, "code": {"digest": "abc", "modules": modules}})


@pytest.mark.parametrize("environment", [["PIPELINE_ATTENTION"], {"PIPELINE_ATTENTION": 1}, None])
def test_variables_that_are_no_text_are_refused(environment):
    code = {"digest": "abc", "environment": environment}
    assert "is no record: code.environment" in complaint_about({**RECORD, "code": code})


@pytest.mark.parametrize(
    ("subjects", "complaint"),
    [
        ("mine", 'subjects must be a list, got "mine"'),
        (["mine"], 'subject 1 must be an object of texts, got "mine"'),
        ([{"kind": "attention", "name": "mine", "digest": 3}], "subject 1 must be"),
        ([{"kind": "attention", "name": "mine"}], "subject 1 has no kind, name or digest"),
    ],
)
def test_what_a_record_says_of_the_users_own_is_checked(subjects, complaint):
    with pytest.raises(UserError) as raised:
        parse_record(json.dumps(record(subjects=subjects)).encode(), "a record", stages())
    assert f"a record is no record: {complaint}" in str(raised.value)
