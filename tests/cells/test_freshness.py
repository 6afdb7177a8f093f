import ast
import sys

import pytest

from pipeline.cells import freshness

PACKAGE = {
    "__init__.py": "",
    "measure.py": "import os\nfrom pipeline.subject import model\n\ndef measure():\n    return model.f(1)\n",
    "subject/__init__.py": "",
    "subject/model.py": '"""About it."""\n\ndef f(x):\n    """Add."""\n    return x + 1\n\nclass C:\n    """Hold."""\n',
    "section.py": "TITLE = 'a'\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    for name, text in PACKAGE.items():
        path = tmp_path / "pipeline" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(freshness, "SOURCES", tmp_path)
    forget()
    yield tmp_path / "pipeline"
    forget()


def forget():
    for function in (freshness._source_path, freshness._imported_modules, freshness._significant_code):
        function.cache_clear()


def digest_after(path, old, new):
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    forget()
    return freshness.code_digest("pipeline.measure")


@pytest.mark.parametrize("changed", ["x + 2", "x * 1", "x < 1"])
def test_arithmetic_in_an_imported_module_changes_the_digest(package, changed):
    before = freshness.code_digest("pipeline.measure")
    assert digest_after(package / "subject/model.py", "x + 1", changed) != before


def test_a_default_of_none_is_not_one_of_zero(package):
    of_none = digest_after(package / "subject/model.py", "def f(x)", "def f(x, seed=None)")
    assert digest_after(package / "subject/model.py", "seed=None", "seed=0") != of_none


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return x + 1", "return x + 1  # one"),
        ('"""Add."""', '"""Add one."""'),
        ('"""About it."""', '"""About the model."""'),
        ('"""Hold."""', '"""Hold one."""'),
        ("return x + 1", "return (x\n            + 1)"),
    ],
)
def test_comments_docstrings_and_layout_do_not_change_the_digest(package, old, new):
    before = freshness.code_digest("pipeline.measure")
    assert digest_after(package / "subject/model.py", old, new) == before


def test_a_field_that_only_later_versions_of_python_have_does_not_change_the_digest(package, monkeypatch):
    before = freshness.code_digest("pipeline.measure")
    forget()
    monkeypatch.setattr(ast.FunctionDef, "_fields", (*ast.FunctionDef._fields, "of_a_later_version"))
    monkeypatch.setattr(ast.FunctionDef, "of_a_later_version", [], raising=False)
    assert freshness.code_digest("pipeline.measure") == before


def test_code_that_is_not_reached_does_not_change_the_digest(package):
    before = freshness.code_digest("pipeline.measure")
    assert digest_after(package / "section.py", "'a'", "'b'") == before


def test_the_packages_around_a_reached_module_count(package):
    before = freshness.code_digest("pipeline.measure")
    (package / "subject/__init__.py").write_text("import torch\n")
    forget()
    assert freshness.code_digest("pipeline.measure") != before


def test_an_import_inside_a_function_is_followed(package):
    (package / "late.py").write_text("Y = 1\n")
    digest_after(package / "subject/model.py", "return x + 1", "from pipeline import late\n    return x + late.Y")
    assert "pipeline.late" in freshness.reached_modules("pipeline.measure")


def test_timing_reaches_the_model_and_its_instrument_but_no_report_and_no_other_stage():
    reached = freshness.reached_modules("pipeline.stages.timing.measure")
    assert {"pipeline.model.transformer", "pipeline.attention.eager"} <= reached
    assert "pipeline.instruments.sampling.step_timing" in reached
    assert not [name for name in reached if name.startswith("pipeline.report")]
    stages = {name for name in reached if name.startswith("pipeline.stages.")}
    assert all(name.startswith("pipeline.stages.timing") for name in stages)


def test_taking_a_digest_imports_nothing():
    import subprocess

    code = (
        "import sys; from pipeline.cells.freshness import code_digest\n"
        "code_digest('pipeline.stages.timing.measure'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
