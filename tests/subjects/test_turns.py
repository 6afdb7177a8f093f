import sys

import pytest
import torch

from pipeline.subjects.loading import load
from pipeline.subjects.naming import Subject
from pipeline.subjects.turns import Turns, note_last, noted, noted_changes

from .outside_files import attention


@pytest.fixture
def projects(tmp_path):
    """Two projects whose packages have the same name and import a module when called."""
    for name in "ab":
        package = tmp_path / name / "mine"
        package.mkdir(parents=True)
        (tmp_path / name / "pyproject.toml").touch()
        (package / "__init__.py").touch()
        (package / "late.py").write_text(f"NAME = {name!r}")
        (package / "called.py").write_text("def called():\n    from mine.late import NAME\n    return NAME\n")
    (tmp_path / "mark").touch()
    note_last(tmp_path / "mark", None)
    return tmp_path


def test_projects_with_equal_package_names_have_their_own_modules_in_their_turns(projects):
    subjects = [Subject("attention", name, f"{projects}/{name}/mine/called.py:called") for name in "ab"]
    turns, path, modules = Turns(subjects, projects / "mark"), list(sys.path), set(sys.modules)
    functions = {}
    for subject in subjects:
        with turns.of(subject.name):
            functions[subject.name] = load(subject.use)
    for name in "abab":
        with turns.of(name):
            assert functions[name]() == name
            assert noted(projects / "mark") == "ab".index(name)
        assert (sys.path, set(sys.modules)) == (path, modules)


def test_subjects_of_one_project_share_its_modules(projects):
    subjects = [Subject("attention", name, f"{projects}/a/mine/called.py:called") for name in ("one", "two")]
    turns, found = Turns(subjects, None), []
    for subject in subjects:
        with turns.of(subject.name):
            found.append(load(subject.use))
    assert found[0] is found[1]


def test_state_changed_by_an_import_or_a_call_is_restored_and_noted(projects):
    mark, mine = projects / "mark", attention("with_a_state_of_its_own", "kernels/state.py")
    turns, threads = Turns([mine], mark), torch.get_num_threads()
    with turns.of(mine.name):
        function = load(mine.use)
        assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, torch.float32)
    for _ in range(2):
        with turns.of(mine.name):
            function(*torch.ones(3, 1, 4, 8), True)
        assert not torch.are_deterministic_algorithms_enabled()
    assert noted_changes(mark) == {
        0: [
            "default_dtype from torch.float32 to torch.float64",
            "detect_anomaly from False to True",
            f"num_threads from {threads} to {threads + 1}",
            "deterministic_debug_mode from 0 to 1",
        ]
    }


def test_a_turn_of_our_implementation_is_noted_as_none(projects):
    turns = Turns([attention("Right")], projects / "mark")
    turns.begin("right")
    turns.begin("eager")
    assert noted(projects / "mark") is None
