import copy
import functools
import os
import sys
import time
from dataclasses import dataclass
from types import ModuleType

import pytest

from pipeline import peers
from pipeline.attention.triton import kernel_sets
from pipeline.cells import freshness, sources
from pipeline.cells.freshness import Present, code_facts, has_changed_code, why_stale
from pipeline.cells.library_environment import library_environment
from pipeline.subjects import naming
from pipeline.subjects.naming import Subject

OF_STAGES = ("pipeline.stages.timing.measure", "pipeline.stages.timing.rows", "pipeline.stages.flash.cell")
MODULES = ("pipeline", "pipeline.cli", "pipeline.errors", "pipeline.cells.run", "pipeline.model", *OF_STAGES)
MEASURE = "from pipeline import cells, cli, errors, model\nfrom pipeline.cells import run\n"
VERSIONS = {"python": "3.12.1", "torch": "2.13.0"}
NOW = Present(VERSIONS, gpus=4)
AFTER_ALL_EDITS = 4e9


@dataclass(frozen=True)
class Settings:
    steps: int = 10
    budget_s: float = 2.0


@pytest.fixture
def package(write, monkeypatch, tmp_path):
    """A package of which a cell has imported MODULES."""
    paths = {f"{'/'.join(name.split('.')[1:])}.py": name for name in MODULES if "." in name}
    write({path: MEASURE if name.endswith("measure") else "X = 1\n" for path, name in paths.items()})
    monkeypatch.setattr(freshness, "loaded_modules", lambda: set(MODULES))
    return tmp_path / "pipeline"


def facts_now(issued_at=AFTER_ALL_EDITS, **words):
    return code_facts("pipeline.stages.timing", issued_at, os.environ, **words)


@pytest.fixture
def record(package):
    """A record of a cell of 2 GPUs that was measured as all is now."""
    machine = {"software": {**VERSIONS, "cudnn": "9"}, "gpus_available": 8}
    return {"settings": {"steps": 10, "budget_s": 2.0}, "machine": machine, "code": facts_now()}


def why(record, present=NOW):
    return why_stale(record, Settings(), 2, present)


def test_a_record_counts_what_was_measured_not_what_ran_it_or_derives_from_it_nor_what_tells_its_memory_if_it_fits(
    record, write, monkeypatch
):
    ran, told = ("pipeline.model", "pipeline.stages.timing.measure"), "pipeline.stages.timing.needs"
    assert tuple(record["code"]["modules"]) == ran
    write({"stages/timing/needs.py": "from pipeline import model\n"})
    monkeypatch.setattr(freshness, "loaded_modules", lambda: {*MODULES, told})
    assert tuple(facts_now()["modules"]) == ran
    assert tuple(facts_now(measured=False)["modules"]) == (*ran, told)


def test_every_room_that_counts_is_one_of_the_project():
    assert [name for name in freshness.COUNTED if sources.source_path(name) is None] == []


def changed(record, *path, value):
    other = copy.deepcopy(record)
    functools.reduce(dict.__getitem__, path[:-1], other)[path[-1]] = value
    return other


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("settings", "steps"), 10, None),
        (("settings", "steps"), 11, "settings changed"),
        (("settings",), {"steps": 10}, "settings changed"),
        (("machine", "software", "torch"), "2.12.0", "another version of torch"),
        (("machine", "software", "cudnn"), "8", None),  # which is not compared
        (("code", "modules"), {}, "its record does not tell the code"),
        (("code", "modules", "pipeline.gone"), "0" * 16, "code changed: pipeline.gone"),
        (("code", "libraries", "OMP_PLACES"), "cores", "OMP_PLACES changed"),
    ],
)
def test_what_changed_is_why_a_cell_is_stale(record, path, value, said):
    assert why(changed(record, *path, value=value)) == said


@pytest.mark.parametrize(
    ("had", "asks", "there", "is_stale"),
    [(1, 2, 4, True), (2, 2, 4, False), (8, 2, 0, False), (1, 4, 1, False), (1, 4, 2, True)],
)
def test_a_cell_is_stale_where_it_would_have_more_of_the_gpus_that_it_asks_for(record, had, asks, there, is_stale):
    measured = changed(record, "machine", "gpus_available", value=had)
    said = why_stale(measured, Settings(), asks, Present(VERSIONS, gpus=there))
    assert said == ("2 GPUs for it now" if is_stale else None)


@pytest.mark.parametrize("name", ["cores", "cpu_quota", "memory_limit_bytes"])
def test_a_cell_is_stale_where_the_host_allows_other_than_it_did(record, name):
    allowed = {"cores": 2, "cpu_quota": None, "memory_limit_bytes": None}
    now = Present(VERSIONS, gpus=4, allowed=allowed)
    assert why(record, now) is None  # it is of an earlier version, which did not tell
    record["machine"] |= allowed
    assert why(record, now) is None
    record["machine"][name] = 1
    assert name in why(record, now)
    assert why(record) is None  # another host measures


def test_a_variable_that_an_imported_module_names_makes_its_cell_stale_when_it_says_something_else(
    record, write, monkeypatch
):
    assert why(record, Present(VERSIONS, 4, {**os.environ, kernel_sets.VARIABLE: "tl"})) is None
    write({"model.py": f"VARIABLE = '{kernel_sets.VARIABLE}'\n"})
    for was, other in ({}, {kernel_sets.VARIABLE: "tl"}), ({kernel_sets.VARIABLE: "tl"}, {}):
        monkeypatch.setattr(os, "environ", was)
        record["code"] = facts_now() | {"libraries": {}}
        assert why(record, Present(VERSIONS, 4, was)) is None
        assert why(record, Present(VERSIONS, 4, other)) == "PIPELINE_ATTENTION changed"


def test_edited_modules_make_stale_those_that_imported_them(record, write):
    others = ("cli.py", "errors.py", "cells/run.py", "stages/timing/rows.py", "stages/flash/cell.py")
    write(dict.fromkeys(others, "X = 2\n") | {"model.py": "X = 1  # as before\n"})
    assert why(record) is None
    assert not has_changed_code(record)
    write(dict.fromkeys(("model.py", "stages/timing/measure.py"), f"{MEASURE}X = 2\n"))
    assert why(record) == "code changed: pipeline.model and 1 more"
    assert has_changed_code(record)


def test_of_a_module_edited_while_the_cell_ran_no_version_is_believed_whatever_its_date(package):
    os.utime(package / "model.py", (AFTER_ALL_EDITS, AFTER_ALL_EDITS))
    assert freshness.CHANGED_MEANWHILE not in facts_now(time.time() + 1)["modules"].values()
    issued_at = time.time()
    while time.time() < issued_at + 0.05:  # file systems may tell times to a tick of the clock
        pass
    (package / "model.py").write_text("X = 2\n")
    os.utime(package / "model.py", (1_000, 1_000))  # as `cp -p` and `rsync -a` leave it
    modules = facts_now(issued_at)["modules"]
    assert modules["pipeline.model"] == freshness.CHANGED_MEANWHILE
    assert modules["pipeline.stages.timing.measure"] == sources.module_digest("pipeline.stages.timing.measure")


MINE = {"kind": "attention", "name": "mine", "use": "mine:flash", "digest": "a"}


@pytest.mark.parametrize(
    ("measured", "asked", "said"),
    [
        ([MINE], [MINE], None),
        ([MINE], [{**MINE, "digest": "b"}], "attention.mine changed"),
        ([MINE], [{**MINE, "use": "mine:other"}], "attention.mine changed"),
        ([MINE], [], "attention.mine changed"),
        ([], [MINE], "attention.mine changed"),
        ([MINE], [{**MINE, "name": "other"}], "attention.other, attention.mine changed"),
    ],
)
def test_a_cell_is_stale_when_the_users_own_are_others_or_edited(record, measured, asked, said):
    assert why_stale({**record, "subjects": measured}, Settings(), 2, NOW, asked) == said


def test_one_of_the_users_own_that_was_edited_meanwhile_has_no_digest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text("def flash(): pass\n")
    subjects = [Subject("attention", "mine", "mine.py:flash")]
    before = naming.facts(subjects)
    assert freshness.subject_facts(subjects, before) == before
    file.write_text("def flash(): return 1\n")
    (after,) = freshness.subject_facts(subjects, before)
    assert after == {**before[0], "digest": freshness.CHANGED_MEANWHILE}


def test_a_cell_is_stale_where_a_peer_of_its_stage_came_or_has_another_version(record, monkeypatch):
    found = {"fa4": None}
    monkeypatch.setattr(peers, "version_of", found.get)
    stage = ModuleType("pipeline.stages.timing.cell")
    stage.PACKAGES = ("fa4",)
    monkeypatch.setitem(sys.modules, "pipeline.stages.timing.cell", stage)
    record["code"] = facts_now()
    assert why(record) is None
    found["fa4"] = "4.0"
    assert why(record) == "another version of flash-attn-4"
    record["code"] = facts_now()
    assert why(record) is None
    del record["code"]["peers"]  # an earlier version wrote it
    assert why(record) is None


def test_what_changes_values_is_there_what_cells_set_or_only_names_a_place_is_not_and_no_path_tells_whose_it_is():
    read = {"OMP_PROC_BIND": "true", "GLIBC_TUNABLES": "glibc.malloc.arena_max=1", "NCCL_ALGO": "Ring"}
    others = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "CUDA_VISIBLE_DEVICES": "3"}
    others |= {"TRITON_CACHE_DIR": "/home/me/cache", "HOME": "/home/me"}
    assert library_environment(read | others) == read
    first, second = (library_environment({"LD_PRELOAD": f"/home/me/{name}"})["LD_PRELOAD"] for name in ("a.so", "b.so"))
    assert first != second
    assert "me" not in first
