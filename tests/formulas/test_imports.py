import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pipeline.formulas

MODULES = sorted(Path(pipeline.formulas.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_formulas_import_no_other_room(path):
    imported = {
        node.module if isinstance(node, ast.ImportFrom) else name.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    ours = {name for name in imported if name.startswith("pipeline")}
    assert all(name.startswith("pipeline.formulas") for name in ours)


def test_what_the_workflow_reads_imports_no_torch():
    names = ", ".join(f"pipeline.formulas.{path.stem}" for path in MODULES if path.stem != "__init__")
    code = f"import sys; import {names}, pipeline.model.precision; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
