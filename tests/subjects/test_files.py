import os
import re
import shutil
import sys

import pytest

from pipeline.subjects.files import check_location, defined_names, digest, find

from ..complaints import complaint
from .outside_files import OUTSIDE


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A copy of the outside implementations to edit, as the working directory."""
    shutil.copytree(OUTSIDE, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def test_a_module_is_found_by_file_or_name_without_being_run(project, monkeypatch, tmp_path):
    (project / "kernels/__init__.py").write_text("raise SystemExit")
    source = find("kernels.attention")
    assert (source.file, source.root) == (project / "kernels/attention.py", project)
    assert "kernels" not in sys.modules
    assert find("kernels/attention.py").module == "kernels.attention"
    monkeypatch.chdir(tmp_path)
    assert complaint(find, "kernels.attention").startswith("there is no Python module kernels")
    monkeypatch.setenv("PYTHONPATH", str(project))
    assert find("kernels.attention").file == project / "kernels/attention.py"
    assert find("yaml").module == "yaml"
    for name in ("math", "outside", "kernels.attention.Right", "nowhere.at.all"):  # none of these has a source file
        assert complaint(find, name).startswith(f"there is no Python module {name} in ")


@pytest.mark.parametrize("place", ["adapters.py:get_fsdp", "adapters:get_fsdp"])
@pytest.mark.parametrize("name", ["adapters.py", "kernels/attention.py", "kernels/masks.py", "kernels/__init__.py"])
def test_the_digest_covers_code_that_a_place_imports_from_its_project(project, place, name):
    before = digest([place])
    path = project / name
    path.write_text(path.read_text() + "\n# a comment\n")
    assert digest([place]) == before
    path.write_text(path.read_text() + "\nVALUE = 1\n")
    assert digest([place]) != before


def test_the_digest_covers_local_imports_and_named_kernel_files_but_no_other_file(project):
    def digest_with(name, text):
        (project / name).write_text(text)
        return digest(["adapters:get_ddp_bucketed"])

    digest_with("training.py", "SOURCE = 'flash.cu'\nclass Buckets: ...\n")
    kernels = {digest_with("flash.cu", f"__global__ void flash() {{{body}}}") for body in ("", " return; ")}
    changed = digest_with("training.py", "SOURCE = 'flash.cu'\nclass Buckets:\n    size = 1\n")
    assert len({*kernels, changed}) == 3
    assert digest_with("unused.py", "VALUE = 1\n") == changed


def test_the_digest_covers_enclosing_packages_but_no_file_outside_the_project(project, tmp_path):
    (tmp_path / "secret.txt").write_text("a")
    (project / ".git").mkdir()
    (project / "kernels/masks.py").write_text("PATH = '../../secret.txt'\nimport numpy\n")
    before = digest(["kernels.attention:Right"])
    (tmp_path / "secret.txt").write_text("b")
    assert digest(["kernels.attention:Right"]) == before
    (project / "kernels/__init__.py").write_text("VALUE = 1\n")
    assert digest(["kernels.attention:Right"]) != before


def test_names_defined_in_a_branch_or_by_a_star_import_are_found(project):
    (project / "mine.py").write_text("try:\n    import kernels.masks as masks\nexcept ImportError:\n    flash = None\n")
    check_location("mine:flash", "mine")
    check_location("mine:masks.future", "mine")
    told = "mine: mine does not define 'attention'; it defines flash, masks"
    assert complaint(check_location, "mine:attention", "mine") == told
    assert complaint(check_location, "mine:flahs", "mine").endswith("'flahs'; did you mean 'flash'?")
    (project / "mine.py").write_text("import torch\ndef flash(): ...\nclass Attention: ...\nSIZE = 1\n")
    assert complaint(check_location, "mine:nope", "mine").endswith("'nope'; it defines flash, Attention")
    (project / "mine.py").write_text("from yaml import *\n")
    check_location("mine:attention", "mine")
    assert "safe_load" in defined_names("mine.py", "mine")


@pytest.mark.parametrize("module", ["kernels.attention", "again", "kernels"])
def test_a_star_import_beside_a_def_hides_nothing(project, module):
    (project / "again.py").write_text("from kernels.attention import *\n")
    (project / "kernels/__init__.py").write_text("from .attention import *\nfrom .masks import *\n")
    (project / "mine.py").write_text(f"from {module} import *\ndef flash(): ...\n")
    assert {"flash", "Right"} <= defined_names("mine.py", "mine")
    check_location("mine:Right", "mine")
    assert complaint(check_location, "mine:Left", "mine").endswith("does not define 'Left'; it defines flash")


@pytest.mark.filterwarnings("error")  # reading a file must not repeat its warnings
def test_odd_but_valid_python_is_accepted_and_invalid_python_is_reported_with_its_line(project):
    digests = set()
    for numbers in (950, 951):
        deep = " + ".join(["1"] * numbers)
        (project / "mine.py").write_text(f"def flash():\n    from {'.' * 80} import x\n    return {deep}, '\\d'\n")
        check_location("mine:flash", "mine")
        digests.add(digest(["mine:flash"]))
    assert len(digests) == 2
    for text, said in (
        (f"VALUE = {'(' * 50_000}1{')' * 50_000}\n", "(nested too deeply|too many nested parentheses)"),
        (f"VALUE = {'-' * 50_000}1\n", "nested too deeply"),
        ("VALUE = 1\ndef flash(:\n", "line 2: no valid Python: invalid syntax"),
    ):
        (project / "mine.py").write_text(text)
        assert re.match(rf"mine: .*mine\.py: .*{said}", complaint(check_location, "mine:VALUE", "mine"))


def test_a_large_file_is_identified_by_size_and_time_without_being_read(project):
    (project / "training.py").write_text("WEIGHTS = 'weights.bin'\n\n\nclass Net: ...\n")
    (project / "weights.bin").touch()
    os.truncate("weights.bin", 2**43)  # more than could be read
    before = digest(["training.py:Net"])
    assert digest(["training.py:Net"]) == before
    os.utime("weights.bin", (0, 0))
    assert digest(["training.py:Net"]) != before
