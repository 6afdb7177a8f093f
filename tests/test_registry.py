import subprocess
import sys

import pytest

from pipeline import registry
from pipeline.errors import UserError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of stages with one, `warmth`."""
    (tmp_path / "warmth").mkdir()
    (tmp_path / "warmth/__init__.py").write_text("")
    monkeypatch.setattr(registry, "FOLDER", tmp_path)
    monkeypatch.setattr(registry, "NAMES", ("warmth",))
    registry.stages.cache_clear()
    yield tmp_path
    registry.stages.cache_clear()


def test_stages_come_in_reading_order():
    assert tuple(registry.stages()) == registry.NAMES
    assert registry.stage("timing") is registry.stages()["timing"]


def test_an_unknown_stage_is_named_with_the_known_ones():
    with pytest.raises(UserError, match=r"unknown stage 'timings': must be one of ceilings, health, timing, levers"):
        registry.stage("timings")


def test_a_folder_that_is_not_registered_is_named_with_what_to_do(folder):
    assert list(registry.stages()) == ["warmth"]
    registry.stages.cache_clear()
    (folder / "heat").mkdir()
    (folder / "heat/__init__.py").write_text("")
    with pytest.raises(UserError) as raised:
        registry.stage("warmth")
    assert str(raised.value) == f"{folder}/heat/ is not registered: add 'heat' to NAMES in {registry.__file__}"


def test_a_registered_stage_without_a_folder_is_named(folder):
    (folder / "warmth/__init__.py").unlink()
    with pytest.raises(UserError, match=r"lists 'warmth', but .*/warmth/__init__\.py does not exist"):
        registry.stages()


def test_stages_ask_their_questions_where_python_keeps_no_docstrings():
    code = "from pipeline.registry import stages\nprint(*(s.question for s in stages().values()), sep='\\n', end='')"
    done = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.splitlines() == [stage.question for stage in registry.stages().values()]
