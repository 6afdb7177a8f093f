import os
import shutil
from types import SimpleNamespace

import pytest

from pipeline.cells.disk import WholeFile
from pipeline.cells.preflight import check_results, check_writable
from pipeline.cells.record import SCHEMA_VERSION, write_record
from pipeline.errors import UserError
from pipeline.registry import stages

from ..records import CPU, record


def leave_record(results, machine, name="cell"):
    left = record(machine={**CPU, "kind": machine})
    write_record(WholeFile(results / f"timing/cells/precision=bf16/{name}.json"), left)


def test_a_folder_of_this_machine_or_an_absent_one_may_be_measured_into(tmp_path):
    check_results(tmp_path / "results", "NVIDIA H200", stages())
    leave_record(tmp_path / "results", "NVIDIA H200")
    check_results(tmp_path / "results", "NVIDIA H200", stages())


def test_one_record_of_another_machine_stops_the_run_and_says_how_to_go_on(tmp_path):
    for index, machine in enumerate(["NVIDIA L4", "NVIDIA L4", "NVIDIA H200", "NVIDIA L4"]):
        leave_record(tmp_path, machine, f"cell{index}")
    with pytest.raises(UserError) as raised:
        check_results(tmp_path, "NVIDIA L4", stages())
    for part in ("NVIDIA H200", "NVIDIA L4", "--config measure=false", "--directory runs/"):
        assert part in str(raised.value)


def test_an_incomplete_record_stops_the_run_with_one_line(tmp_path):
    write_record(WholeFile(tmp_path / "timing/cells/cell.json"), {"schema_version": SCHEMA_VERSION})
    with pytest.raises(UserError, match=r"cell\.json is no record: it has no stage, "):
        check_results(tmp_path, "NVIDIA H200", stages())


def test_a_record_in_the_place_of_another_cell_stops_the_run(tmp_path):
    place = "size=tiny/context_length=16/batch_size=4/warmup_steps=5/repeat=1"
    leave_record(tmp_path, "NVIDIA H200", place)
    with pytest.raises(UserError, match=r"repeat=1\.json holds the record of another cell"):
        check_results(tmp_path, "NVIDIA H200", stages())


def test_a_full_disk_stops_the_run_before_it_measures(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=5 * 2**20))
    with pytest.raises(UserError, match="full disk: 5 MiB free, 100 MiB needed"):
        check_results(tmp_path / "results", "NVIDIA H200", stages())


def test_a_folder_that_is_there_or_can_be_made_passes(tmp_path):
    assert check_writable(tmp_path) == tmp_path
    assert check_writable(tmp_path / "reports/sections") == tmp_path
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize("refused", [os.W_OK, os.X_OK])
def test_a_read_only_folder_is_named(tmp_path, monkeypatch, refused):
    monkeypatch.setattr("os.access", lambda _path, mode: not mode & refused)  # root may write anywhere
    with pytest.raises(UserError) as raised:
        check_writable(tmp_path / "reports")
    assert str(raised.value) == f"{tmp_path}/reports/ cannot be written: {tmp_path} is read-only for this user"


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "reports").write_text("")
    with pytest.raises(UserError, match="reports is no folder"):
        check_writable(tmp_path / "reports/sections")
