import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.cells import fields, layout
from pipeline.cells.disk import WholeFile
from pipeline.cells.record import write_record
from pipeline.errors import UserError
from pipeline.registry import stages
from pipeline.stages.timing.cell import Cell

from ..records import CPU, record

CELL = Cell(precision="bf16", size="2.7B", context_length=512)
PLACE = "precision=bf16/size=2.7B/context_length=512/batch_size=4/warmup_steps=5/mode=eager/repeat=1"


def cell_as_json(cell):
    return json.loads(json.dumps({axis: getattr(cell, axis) for axis in fields.texts(cell)}))


def test_a_record_lies_in_a_folder_for_each_axis(tmp_path):
    assert layout.record_path(tmp_path, "timing", CELL) == tmp_path / f"timing/cells/{PLACE}.json"


@pytest.mark.parametrize("stage", stages())
def test_the_pattern_of_a_stage_filled_with_a_cell_is_its_path(stage):
    cell = stages()[stage].cell_type()
    filled = layout.cell_pattern(type(cell)).format(**fields.texts(cell))
    assert layout.record_path(Path("results"), stage, cell) == Path(f"results/{stage}/cells/{filled}.json")


@pytest.mark.parametrize("cell", [CELL, Cell()])
def test_records_at_the_paths_of_their_cells_are_found(tmp_path, cell):
    path = layout.record_path(tmp_path, "timing", cell)
    write_record(WholeFile(path), record(cell=cell_as_json(cell)))
    assert layout.recorded_cells(tmp_path, stages()["timing"]) == {path: cell}
    assert layout.recorded_cells(tmp_path, stages()["flash"]) == {}


REST = "context_length=512/batch_size=4/warmup_steps=5/mode=eager/repeat=1"
SIZE = f"size=tiny/{REST}"


@pytest.mark.parametrize(
    "place",
    [
        "precision=bf16/size=tiny/x$(touch PWNED)",
        *(f"precision={hostile}/{SIZE}" for hostile in ("`touch PWNED`", "bf16 ", "'bf16'", "bf16\n", "*", "\udcff")),
        *(
            f"precision=bf16/size={hostile}/{REST}"
            for hostile in ("tiny; touch PWNED", '"tiny"', "\x1b[2Jtiny", "tiny=x")
        ),
        *(f"-precision=bf16/{SIZE}", ".precision=bf16", "precision=bf16/size=tiny"),
        f"size=tiny/precision=bf16/{REST}",
        f"precision=bf16/precision=bf16/{SIZE}",
        *(f"precision=bf16/{SIZE}{more}" for more in ("/run=1", ".copy")),
        *(f"precision=bf16/{SIZE}".replace("512", number) for number in ("0512", " 512", "٥١٢")),
    ],
)
def test_a_path_that_is_no_cells_is_named_in_one_line(tmp_path, place):
    path = tmp_path / f"timing/cells/{place}.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    with pytest.raises(UserError) as raised:
        layout.recorded_cells(tmp_path, stages()["timing"])
    message = str(raised.value)
    assert message.startswith(f"{tmp_path}/timing/cells/")
    assert message.endswith("move it out of the results")
    assert message.isprintable()


@pytest.mark.parametrize("size", ["xl", "small"])
def test_a_record_in_the_place_of_another_cell_is_named_in_one_line(tmp_path, size):
    path = layout.record_path(tmp_path, "timing", CELL)
    write_record(WholeFile(path), record(cell={**cell_as_json(CELL), "size": size}))
    with pytest.raises(UserError) as raised:
        layout.recorded_cells(tmp_path, stages()["timing"])
    assert str(raised.value).startswith(f"{path} holds the record of another cell, timing precision=bf16 size={size} ")
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"cell": {"context_length": "$(touch PWNED)\n"}}, "its cell: context_length must be "),
        ({"cell": {"context_length": [[1]]}}, "cell.context_length must be text or a number or true or false"),
        ({"cell": {"seq_len": 1}}, "its cell: unknown key 'seq_len'"),
        ({"stage": "flash"}, 'stage must be one of timing, got "flash"'),
    ],
)
def test_a_record_of_something_else_is_named_in_one_line(tmp_path, parts, complaint):
    path = layout.record_path(tmp_path, "timing", CELL)
    write_record(WholeFile(path), record(**parts))
    with pytest.raises(UserError) as raised:
        layout.recorded_cells(tmp_path, stages()["timing"])
    assert str(raised.value).startswith(f"{path} is no record: {complaint}")
    assert str(raised.value).isprintable()


def leave_record(results, machine, name="cell"):
    left = record(machine={**CPU, "kind": machine})
    write_record(WholeFile(results / f"timing/cells/precision=bf16/{name}.json"), left)


def test_a_folder_of_this_machine_or_an_absent_one_may_be_measured_into(tmp_path):
    layout.check_results(tmp_path / "results", "NVIDIA H200", stages())
    leave_record(tmp_path / "results", "NVIDIA H200")
    layout.check_results(tmp_path / "results", "NVIDIA H200", stages())


def test_one_record_of_another_machine_stops_the_run_and_says_how_to_go_on(tmp_path):
    for index, machine in enumerate(["NVIDIA L4", "NVIDIA L4", "NVIDIA H200", "NVIDIA L4"]):
        leave_record(tmp_path, machine, f"cell{index}")
    with pytest.raises(UserError) as raised:
        layout.check_results(tmp_path, "NVIDIA L4", stages())
    for part in ("NVIDIA H200", "NVIDIA L4", "--config measure=false", "--directory runs/"):
        assert part in str(raised.value)


def test_a_record_in_the_place_of_another_cell_stops_the_run(tmp_path):
    place = "size=tiny/context_length=16/batch_size=4/warmup_steps=5/mode=eager/repeat=1"
    leave_record(tmp_path, "NVIDIA H200", place)
    with pytest.raises(UserError, match=r"repeat=1\.json holds the record of another cell"):
        layout.check_results(tmp_path, "NVIDIA H200", stages())


def test_a_full_disk_stops_the_run_before_it_measures(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=5 * 2**20))
    with pytest.raises(UserError, match="full disk: 5 MiB free, 100 MiB needed"):
        layout.check_results(tmp_path / "results", "NVIDIA H200", stages())


def test_a_folder_that_is_there_or_can_be_made_passes(tmp_path):
    assert layout.check_writable(tmp_path) == tmp_path
    assert layout.check_writable(tmp_path / "reports/sections") == tmp_path
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize("refused", [os.W_OK, os.X_OK])
def test_a_read_only_folder_is_named(tmp_path, monkeypatch, refused):
    monkeypatch.setattr("os.access", lambda _path, mode: not mode & refused)  # root may write anywhere
    with pytest.raises(UserError) as raised:
        layout.check_writable(tmp_path / "reports")
    assert str(raised.value) == f"{tmp_path}/reports/ cannot be written: {tmp_path} is read-only for this user"


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "reports").write_text("")
    with pytest.raises(UserError, match="reports is no folder"):
        layout.check_writable(tmp_path / "reports/sections")
