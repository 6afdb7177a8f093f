import ast
import sys

import pytest

from pipeline.cells import module_texts

TEXT = "import os\nfrom pipeline import model\n\nSTYLE, FOLDER = 'page.css', 'PIPELINE_LOCKS'\n"


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    path = tmp_path / "module.py"
    path.write_text(TEXT)
    return path


def test_a_text_says_what_it_imports_and_may_read_and_a_second_process_need_not_parse_it(module, monkeypatch):
    said = module_texts.read(module)
    assert said.imports == ["os", "pipeline", "pipeline.model"]
    assert (said.files, said.variables) == (["page.css"], ["PIPELINE_LOCKS"])
    monkeypatch.setattr(ast, "parse", None)
    assert module_texts.read(module) == said


def test_what_is_kept_is_of_this_text_and_these_rules_alone(module, monkeypatch):
    before = module_texts.read(module).digest
    module.write_text(TEXT.replace("page", "part"))  # as long, within the same second
    assert module_texts.read(module).digest != before
    monkeypatch.setattr(module_texts, "RULES", b"other rules")
    monkeypatch.setattr(module_texts, "_parse", lambda *_: module_texts.ModuleText("by other rules", [], [], []))
    assert module_texts.read(module).digest == "by other rules"


@pytest.mark.parametrize("damage", ["", "1", "{}", '{"of": "another"}', '{"of": 1, "digest": ', "\udcff"])
def test_what_is_kept_and_damaged_is_written_anew(module, damage):
    said = module_texts.read(module)
    (kept,) = (module.parent / "__pycache__").iterdir()
    whole = kept.read_text()
    kept.write_text(damage, errors="surrogateescape")
    assert module_texts.read(module) == said
    assert kept.read_text() == whole


def test_where_python_writes_no_bytecode_nothing_is_kept_and_a_folder_that_takes_none_is_no_error(module, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    said = module_texts.read(module)
    assert [*module.parent.iterdir()] == [module]
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (module.parent / "__pycache__").touch()
    assert module_texts.read(module) == said
