import shutil
import sys

import pytest

from pipeline.errors import UserError
from pipeline.subjects.files import check_location, digest, find

from .outside_files import OUTSIDE


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A copy of the outside implementations to edit, as the working directory."""
    shutil.copytree(OUTSIDE, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def test_a_module_is_found_in_the_working_directory_without_being_run(project):
    (project / "kernels/__init__.py").write_text("raise SystemExit")
    source = find("kernels.attention")
    assert (source.file, source.root) == (project / "kernels/attention.py", project)
    assert "kernels" not in sys.modules


def test_a_module_is_found_in_pythonpath_and_among_what_is_installed(project, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="there is no Python module kernels"):
        find("kernels.attention")
    monkeypatch.setenv("PYTHONPATH", str(project))
    assert find("kernels.attention").file == project / "kernels/attention.py"
    assert find("yaml").module == "yaml"


def test_a_folder_s_name_may_have_a_colon(project):
    (project / "a:b").mkdir()
    shutil.copy(project / "kernels/attention.py", project / "a:b/mine.py")
    check_location(f"{project}/a:b/mine.py:by_heads", "subjects")


def test_what_has_no_source_of_python_is_no_module(project):
    (project / "folder").mkdir()
    for name in ("math", "folder", "kernels.attention.Right", "nowhere.at.all"):
        with pytest.raises(UserError, match=f"there is no Python module {name} in "):
            find(name)


def test_a_file_in_packages_is_a_module_of_them(project):
    assert find("kernels/attention.py").module == "kernels.attention"
    assert find("training.py").module == "training"


@pytest.mark.parametrize("place", ["adapters.py:get_fsdp", "adapters:get_fsdp"])
@pytest.mark.parametrize("name", ["adapters.py", "kernels/attention.py", "kernels/masks.py", "kernels/__init__.py"])
def test_code_that_a_place_imports_from_its_project_counts(project, place, name):
    before = digest([place])
    path = project / name
    path.write_text(path.read_text() + "\n# a comment\n")
    assert digest([place]) == before
    path.write_text(path.read_text() + "\nVALUE = 1\n")
    assert digest([place]) != before


def test_an_import_inside_a_function_counts_and_another_file_does_not(project):
    before = digest(["adapters:get_ddp_bucketed"])
    (project / "training.py").write_text((project / "training.py").read_text() + "\nVALUE = 1\n")
    after = digest(["adapters:get_ddp_bucketed"])
    assert after != before
    (project / "unused.py").write_text("VALUE = 1\n")
    assert digest(["adapters:get_ddp_bucketed"]) == after


def test_a_kernel_that_is_named_beside_it_counts(project):
    (project / "kernels/masks.py").write_text("SOURCE = 'flash.cu'\n")
    (project / "kernels/flash.cu").write_text("__global__ void flash() {}")
    before = digest(["kernels.attention:Right"])
    (project / "kernels/flash.cu").write_text("__global__ void flash() { return; }")
    assert digest(["kernels.attention:Right"]) != before


def test_files_outside_of_the_project_do_not_count(project, tmp_path):
    (tmp_path / "secret.txt").write_text("a")
    (project / ".git").mkdir()
    (project / "kernels/masks.py").write_text("PATH = '../../secret.txt'\nimport numpy\n")
    before = digest(["kernels.attention:Right"])
    (tmp_path / "secret.txt").write_text("b")
    assert digest(["kernels.attention:Right"]) == before


def test_a_name_may_be_defined_in_a_branch_or_come_by_a_star(project):
    (project / "mine.py").write_text("try:\n    import kernels.masks as masks\nexcept ImportError:\n    flash = None\n")
    check_location("mine:flash", "mine")
    check_location("mine:masks.future", "mine")
    with pytest.raises(UserError, match="mine: mine does not define 'attention'; it defines flash, masks"):
        check_location("mine:attention", "mine")
    with pytest.raises(UserError, match=r"does not define 'flahs'; did you mean 'flash'\?"):
        check_location("mine:flahs", "mine")
    (project / "mine.py").write_text("import torch\ndef flash(): ...\nclass Attention: ...\nSIZE = 1\n")
    with pytest.raises(UserError, match=r"does not define 'nope'; it defines flash, Attention$"):
        check_location("mine:nope", "mine")
    (project / "mine.py").write_text("from kernels.attention import *\n")
    check_location("mine:attention", "mine")


def test_a_file_that_is_no_python_is_named_with_the_line(project):
    (project / "mine.py").write_text("VALUE = 1\ndef flash(:\n")
    with pytest.raises(UserError, match=r"mine: .*mine\.py: line 2: no valid Python: invalid syntax"):
        check_location("mine:flash", "mine")
