import subprocess
import sys

import pytest

from pipeline import registry

from .complaints import complaint


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "warmth").mkdir()
    (tmp_path / "warmth/__init__.py").write_text("")
    monkeypatch.setattr(registry, "FOLDER", tmp_path)
    monkeypatch.setattr(registry, "NAMES", ("warmth",))
    registry.stages.cache_clear()
    yield tmp_path
    registry.stages.cache_clear()


def test_unregistered_folders_and_stages_without_a_folder_are_reported(folder):
    assert list(registry.stages()) == ["warmth"]
    registry.stages.cache_clear()
    (folder / "heat").mkdir()
    (folder / "heat/__init__.py").write_text("")
    message = f"{folder}/heat/ is not registered: add 'heat' to NAMES in {registry.__file__}"
    assert complaint(registry.stage, "warmth") == message
    for name in ("heat", "warmth"):
        (folder / name / "__init__.py").unlink()
    assert f"lists 'warmth', but {folder}/warmth/__init__.py does not exist" in complaint(registry.stages)


def test_stages_have_their_questions_when_python_drops_docstrings():
    code = "from pipeline.registry import stages\nprint(*(s.question for s in stages().values()), sep='\\n', end='')"
    assert printed("-OO", "-c", code).splitlines() == [stage.question for stage in registry.stages().values()]


def test_rows_and_sections_do_not_load_torch():
    code = "import importlib, sys\nfrom pipeline.registry import stages\nfor name, stage in stages().items():\n"
    code += "    stage.row_types, importlib.import_module(f'{stage.package}.report')\n"
    code += "    print('torch' in sys.modules and name)"
    assert set(printed("-c", code).split()) == {"False"}


def printed(*words):
    return subprocess.run([sys.executable, *words], capture_output=True, encoding="utf-8", check=True).stdout
