import os
import shutil
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.cells import fields, layout
from pipeline.cells.disk import AtomicFile, write_text
from pipeline.cells.record import write_record
from pipeline.registry import stages
from pipeline.stages.timing.cell import Cell

from ..complaints import complaint
from ..records import CPU, record

CELL = Cell(precision="bf16", size="2.7B", context_length=512)
REST = "context_length=512/batch_size=4/warmup_steps=5/repeat=1"
SIZE = f"size=tiny/{REST}"


def write_timing_record(results, at=CELL, **parts):
    path = layout.record_path(results, "timing", at)
    write_record(AtomicFile(path), record(**{"cell": asdict(at), **parts}))
    return path


@pytest.mark.parametrize("stage", stages())
def test_a_stages_pattern_filled_with_a_cell_is_the_cells_path(stage):
    cell = stages()[stage].cell_type()
    filled = layout.cell_pattern(type(cell)).format(**fields.texts(cell))
    assert layout.record_path(Path("results"), stage, cell) == Path(f"results/{stage}/cells/{filled}.json")


def test_records_at_the_paths_of_their_cells_are_found(tmp_path):
    cells_by_path = {write_timing_record(tmp_path, cell): cell for cell in (CELL, Cell())}
    assert layout.recorded_cells(tmp_path, stages()["timing"]) == cells_by_path
    assert layout.recorded_cells(tmp_path, stages()["flash"]) == {}


@pytest.mark.parametrize(
    "place",
    [
        "precision=bf16/size=tiny/x$(touch PWNED)",
        *(f"precision={hostile}/{SIZE}" for hostile in ("`touch PWNED`", "bf16 ", "'bf16'", "bf16\n", "*", "\udcff")),
        *(f"precision=bf16/size={hostile}/{REST}" for hostile in ("tiny; touch PWNED", "\x1b[2Jtiny", "tiny=x")),
        *(f"-precision=bf16/{SIZE}", ".precision=bf16", "precision=bf16/size=tiny"),
        f"size=tiny/precision=bf16/{REST}",
        f"precision=bf16/precision=bf16/{SIZE}",
        *(f"precision=bf16/{SIZE}{more}" for more in ("/run=1", ".copy")),
        *(f"precision=bf16/{SIZE}".replace("512", number) for number in ("0512", " 512", "٥١٢")),
    ],
)
def test_a_path_that_names_no_cell_is_reported_in_one_line(tmp_path, place):
    path = tmp_path / f"timing/cells/{place}.json"
    write_text(path, "{}")
    message = complaint(layout.recorded_cells, tmp_path, stages()["timing"])
    assert message.startswith(f"{tmp_path}/timing/cells/")
    assert message.endswith("move it out of the results")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"cell": asdict(CELL) | {"size": "xl"}}, " holds the record of another cell, timing precision=bf16 size=xl "),
        ({"cell": {"context_length": "$(touch PWNED)\n"}}, " is not a valid record: its cell: context_length must be "),
        (
            {"cell": {"context_length": [[1]]}},
            " is not a valid record: cell.context_length must be text or a number or true",
        ),
        ({"cell": {"seq_len": 1}}, " is not a valid record: its cell: unknown key 'seq_len'"),
        ({"stage": "flash"}, ' is not a valid record: stage must be one of timing, got "flash"'),
    ],
)
def test_a_record_that_does_not_fit_its_path_is_reported_in_one_line(tmp_path, parts, message):
    path = write_timing_record(tmp_path, **parts)
    assert complaint(layout.recorded_cells, tmp_path, stages()["timing"]).startswith(f"{path}{message}")


def check(results):
    layout.check_results(results, "NVIDIA H200", stages())


def test_a_new_folder_or_one_of_this_machine_passes_if_records_fit_their_paths(tmp_path):
    check(tmp_path / "results")
    here = CPU | {"kind": "NVIDIA H200"}
    path = write_timing_record(tmp_path / "results", machine=here)
    check(tmp_path / "results")
    path.with_name("emptied.json").touch()
    path.rename(path.with_name("of_an_earlier_version.json"))
    check(tmp_path / "results")
    write_timing_record(tmp_path / "results", cell=asdict(Cell()), machine=here)
    assert "repeat=1.json holds the record of another cell" in complaint(check, tmp_path / "results")


def test_a_record_of_another_machine_or_a_full_disk_stops_the_run(tmp_path, monkeypatch):
    for length, machine in enumerate(["NVIDIA H200", "NVIDIA L4", "NVIDIA H200"], start=1):
        write_timing_record(tmp_path, Cell(context_length=length), machine=CPU | {"kind": machine})
    assert "another machine (NVIDIA L4; this is NVIDIA H200)" in complaint(check, tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=5 * 2**20))
    assert "full disk: 5 MiB free, 100 MiB needed" in complaint(check, tmp_path / "results")


def test_a_folder_must_be_writable_or_possible_to_create(tmp_path, monkeypatch):
    assert layout.check_writable(tmp_path) == layout.check_writable(tmp_path / "reports/sections") == tmp_path
    assert not (tmp_path / "reports").exists()
    for refused in (os.W_OK, os.X_OK):
        monkeypatch.setattr("os.access", lambda _path, mode, no=refused: not mode & no)  # root may write anywhere
        message = complaint(layout.check_writable, tmp_path / "reports")
        assert message == f"{tmp_path}/reports/ cannot be written: {tmp_path} is read-only for this user"
    (tmp_path / "reports").write_text("")
    assert "reports is not a folder" in complaint(layout.check_writable, tmp_path / "reports/sections")
