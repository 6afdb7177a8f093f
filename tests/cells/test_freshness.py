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
from pipeline.cells.freshness import CurrentSetup, code_facts, has_changed_code, why_stale
from pipeline.cells.library_environment import library_environment
from pipeline.subjects import naming
from pipeline.subjects.naming import Subject

OF_STAGES = ("pipeline.stages.timing.measure", "pipeline.stages.timing.rows", "pipeline.stages.flash.cell")
MODULES = ("pipeline", "pipeline.cli", "pipeline.errors", "pipeline.cells.run", "pipeline.model", *OF_STAGES)
MEASURE = "from pipeline import cells, cli, errors, model\nfrom pipeline.cells import run\n"
VERSIONS = {"python": "3.12.1", "torch": "2.13.0"}
NOW = CurrentSetup(VERSIONS, gpus=4)
ALLOWED = {"cores": 2, "cpu_quota": None, "memory_limit_bytes": None}
AFTER_ALL_EDITS = 4e9


@dataclass(frozen=True)
class Settings:
    steps: int = 10
    budget_s: float = 2.0


@pytest.fixture
def package(write, monkeypatch, tmp_path):
    """A package whose MODULES a cell has imported."""
    paths = {f"{'/'.join(name.split('.')[1:])}.py": name for name in MODULES if "." in name}
    write({path: MEASURE if name.endswith("measure") else "X = 1\n" for path, name in paths.items()})
    monkeypatch.setattr(freshness, "loaded_modules", lambda: set(MODULES))
    return tmp_path / "pipeline"


def facts_now(issued_at=AFTER_ALL_EDITS, **words):
    return code_facts("pipeline.stages.timing", issued_at, os.environ, **words)


@pytest.fixture
def record(package):
    """An up-to-date record of a cell on 2 GPUs."""
    machine = {"software": {**VERSIONS, "cudnn": "9"}, "gpus_available": 8, **ALLOWED}
    return {"settings": {"steps": 10, "budget_s": 2.0}, "machine": machine, "code": facts_now()}


def why(record, present=NOW):
    return why_stale(record, Settings(), 2, present)


def test_only_measuring_modules_count_plus_needs_if_nothing_was_measured(record, write, monkeypatch):
    measured_modules, needs_module = (
        ("pipeline.model", "pipeline.stages.timing.measure"),
        "pipeline.stages.timing.needs",
    )
    assert tuple(record["code"]["modules"]) == measured_modules
    write({"stages/timing/needs.py": "from pipeline import model\n"})
    monkeypatch.setattr(freshness, "loaded_modules", lambda: {*MODULES, needs_module})
    assert tuple(facts_now()["modules"]) == measured_modules
    assert tuple(facts_now(measured=False)["modules"]) == (*measured_modules, needs_module)


def test_every_counted_package_exists():
    assert [name for name in freshness.COUNTED if sources.source_path(name) is None] == []


def changed(record, *path, value):
    other = copy.deepcopy(record)
    functools.reduce(dict.__getitem__, path[:-1], other)[path[-1]] = value
    return other


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("settings", "steps"), 10, None),
        (("settings", "steps"), 11, "settings changed"),
        (("settings",), {"steps": 10}, "settings changed"),
        (("machine", "software", "torch"), "2.12.0", "another version of torch"),
        (("machine", "software", "cudnn"), "8", None),  # not compared
        (("code", "modules"), {}, "its record does not name the code"),
        (("code", "modules", "pipeline.gone"), "0" * 16, "code changed: pipeline.gone"),
        (("code", "libraries", "OMP_PLACES"), "cores", "OMP_PLACES changed"),
    ],
)
def test_why_stale_names_what_changed(record, path, value, reason):
    assert why(changed(record, *path, value=value)) == reason


def test_a_library_variable_with_another_value_is_named_once(record, monkeypatch):
    monkeypatch.setattr(os, "environ", {"OMP_PLACES": "threads"})
    record["code"]["libraries"] = {"OMP_PLACES": "cores"}
    assert why(record, CurrentSetup(VERSIONS, 4, os.environ)) == "OMP_PLACES changed"


@pytest.mark.parametrize(
    ("part", "name"), [*(("code", name) for name in sorted(freshness.CODE_FACTS)), ("machine", "gpus_available")]
)
def test_a_record_without_a_fact_is_of_an_earlier_version(record, part, name):
    del record[part][name]
    assert why(record) == "measured by an earlier version"


@pytest.mark.parametrize(
    ("recorded", "requested", "present", "is_stale"),
    [(1, 2, 4, True), (2, 2, 4, False), (8, 2, 0, False), (1, 4, 1, False), (1, 4, 2, True)],
)
def test_a_cell_is_stale_if_it_could_now_use_more_gpus(record, recorded, requested, present, is_stale):
    measured = changed(record, "machine", "gpus_available", value=recorded)
    reason = why_stale(measured, Settings(), requested, CurrentSetup(VERSIONS, gpus=present))
    assert reason == ("2 GPUs available now" if is_stale else None)


@pytest.mark.parametrize("name", ["cores", "cpu_quota", "memory_limit_bytes"])
def test_a_cell_is_stale_if_the_hosts_limits_changed(record, name):
    now = CurrentSetup(VERSIONS, gpus=4, allowed=ALLOWED)
    assert why(record, now) is None
    record["machine"][name] = 1
    assert name in why(record, now)
    assert why(record) is None  # another host measures


def test_a_cell_is_stale_if_a_variable_that_its_modules_name_changed(record, write, monkeypatch):
    assert why(record, CurrentSetup(VERSIONS, 4, {**os.environ, kernel_sets.VARIABLE: "tl"})) is None
    write({"model.py": f"VARIABLE = '{kernel_sets.VARIABLE}'\n"})
    for was, other in ({}, {kernel_sets.VARIABLE: "tl"}), ({kernel_sets.VARIABLE: "tl"}, {}):
        monkeypatch.setattr(os, "environ", was)
        record["code"] = facts_now() | {"libraries": {}}
        assert why(record, CurrentSetup(VERSIONS, 4, was)) is None
        assert why(record, CurrentSetup(VERSIONS, 4, other)) == "PIPELINE_ATTENTION changed"


def test_only_edits_to_counted_modules_make_a_cell_stale(record, write):
    others = ("cli.py", "errors.py", "cells/run.py", "stages/timing/rows.py", "stages/flash/cell.py")
    write(dict.fromkeys(others, "X = 2\n") | {"model.py": "X = 1  # as before\n"})
    assert why(record) is None
    assert not has_changed_code(record)
    write(dict.fromkeys(("model.py", "stages/timing/measure.py"), f"{MEASURE}X = 2\n"))
    assert why(record) == "code changed: pipeline.model and 1 more"
    assert has_changed_code(record)


def test_a_module_edited_while_the_cell_ran_has_no_digest_whatever_its_mtime(package):
    os.utime(package / "model.py", (AFTER_ALL_EDITS, AFTER_ALL_EDITS))
    assert freshness.CHANGED_MEANWHILE not in facts_now(time.time() + 1)["modules"].values()
    issued_at = time.time()
    while time.time() < issued_at + 0.05:  # file times may be only as fine as a clock tick
        pass
    (package / "model.py").write_text("X = 2\n")
    os.utime(package / "model.py", (1_000, 1_000))  # as `cp -p` and `rsync -a` leave it
    modules = facts_now(issued_at)["modules"]
    assert modules["pipeline.model"] == freshness.CHANGED_MEANWHILE
    assert modules["pipeline.stages.timing.measure"] == sources.module_digest("pipeline.stages.timing.measure")


MINE = {"kind": "attention", "name": "mine", "use": "mine:flash", "digest": "a"}


@pytest.mark.parametrize(
    ("measured", "requested", "reason"),
    [
        ([MINE], [MINE], None),
        ([MINE], [{**MINE, "digest": "b"}], "attention.mine changed"),
        ([MINE], [{**MINE, "use": "mine:other"}], "attention.mine changed"),
        ([MINE], [], "attention.mine changed"),
        ([], [MINE], "attention.mine changed"),
        ([MINE], [{**MINE, "name": "other"}], "attention.other, attention.mine changed"),
    ],
)
def test_a_cell_is_stale_if_its_subjects_changed(record, measured, requested, reason):
    assert why_stale({**record, "subjects": measured}, Settings(), 2, NOW, requested) == reason


def test_a_subject_edited_while_it_is_measured_has_no_digest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text("def flash(): pass\n")
    subjects = [Subject("attention", "mine", "mine.py:flash")]
    before = naming.facts(subjects)
    assert freshness.subject_facts(subjects, before) == before
    file.write_text("def flash(): return 1\n")
    (after,) = freshness.subject_facts(subjects, before)
    assert after == {**before[0], "digest": freshness.CHANGED_MEANWHILE}


def test_a_cell_is_stale_if_a_peer_was_installed_or_changed_version(record, monkeypatch):
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


def test_the_library_environment_omits_cells_own_variables_and_hides_paths():
    recorded = {"OMP_PROC_BIND": "true", "GLIBC_TUNABLES": "glibc.malloc.arena_max=1", "NCCL_ALGO": "Ring"}
    others = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "CUDA_VISIBLE_DEVICES": "3"}
    others |= {"TRITON_CACHE_DIR": "/home/me/cache", "HOME": "/home/me"}
    assert library_environment(recorded | others) == recorded
    first, second = (library_environment({"LD_PRELOAD": f"/home/me/{name}"})["LD_PRELOAD"] for name in ("a.so", "b.so"))
    assert first != second
    assert "me" not in first
