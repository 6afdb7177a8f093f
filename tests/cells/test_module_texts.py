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


def test_imports_files_and_variables_are_found_and_cached(module, monkeypatch):
    facts = module_texts.read(module)
    assert facts.imports == ["os", "pipeline", "pipeline.model"]
    assert (facts.files, facts.variables) == (["page.css"], ["PIPELINE_LOCKS"])
    monkeypatch.setattr(ast, "parse", None)
    assert module_texts.read(module) == facts


def test_the_cache_depends_on_the_text_and_the_rules(module, monkeypatch):
    before = module_texts.read(module).digest
    module.write_text(TEXT.replace("page", "part"))  # of the same length, within the same second
    assert module_texts.read(module).digest != before
    monkeypatch.setattr(module_texts, "EXTRACTOR_CODE", b"other rules")
    monkeypatch.setattr(module_texts, "_parse", lambda *_: module_texts.ModuleText("by other rules", [], [], []))
    assert module_texts.read(module).digest == "by other rules"


@pytest.mark.parametrize("damage", ["", "1", "{}", '{"of": "another"}', '{"of": 1, "digest": ', "\udcff"])
def test_a_damaged_cache_file_is_rewritten(module, damage):
    facts = module_texts.read(module)
    (cache_file,) = (module.parent / "__pycache__").iterdir()
    content = cache_file.read_text()
    cache_file.write_text(damage, errors="surrogateescape")
    assert module_texts.read(module) == facts
    assert cache_file.read_text() == content


def test_nothing_is_cached_without_bytecode_or_in_an_unwritable_folder(module, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    facts = module_texts.read(module)
    assert [*module.parent.iterdir()] == [module]
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (module.parent / "__pycache__").touch()
    assert module_texts.read(module) == facts
