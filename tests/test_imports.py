"""Check every import, including dynamic ones, against the table of packages in docs/architecture.md."""

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import pipeline
from pipeline.cells.sources import reached_modules
from pipeline.registry import NAMES

PACKAGE = Path(pipeline.__file__).parent
IMPORT_NOTHING = ("compat", "errors", "formulas", "loaded_modules", "printing", "ranges", "statistics", "syntax")
SHARED = {"compat", "errors", "formulas", "loaded_modules", "peers", "ranges", "tf32"}
SUBJECTS = {"attention", "model", "parallel"}
# The modules that read names and files of the user's implementations without importing them.
NAMES_OF_SUBJECTS = {"subjects.naming", "subjects.files"}
# A module belongs to the longest of these names that its own begins with. Each may import itself and those listed.
ALLOWED = {
    **{name: set() for name in IMPORT_NOTHING},
    "peers": {"errors"},
    "tf32": {"compat"},
    "attention": SHARED,
    "model": SHARED | {"attention"},
    "parallel": SHARED,
    "instruments": SHARED,
    **dict.fromkeys(NAMES_OF_SUBJECTS, {"errors", "syntax"} | NAMES_OF_SUBJECTS),
    "subjects": SHARED | SUBJECTS | NAMES_OF_SUBJECTS | {"instruments"},
    "cells": {"compat", "errors", "instruments", "loaded_modules", "formulas", "peers", "subjects.naming", "syntax"},
    "ways": SHARED | SUBJECTS | {"instruments", "cells", "subjects", "subjects.naming"},
    "report": {"errors", "cells", "instruments", "statistics", "subjects.naming"},
    "snapshots": {"errors", "cells"},
    "compare": {"errors", "cells", "instruments", "report", "snapshots", "statistics"},
    "stages": SHARED | SUBJECTS | {"instruments", "cells", "subjects", "subjects.naming", "ways"},
    "stages.*.report": SHARED | {"cells", "instruments", "report", "stages", "subjects.naming"},
    "results": {"cells", "registry", "snapshots"},
    "doctor": {"errors", "cells", "instruments", "attention", "peers"},
    "describe": {"cells"},
    "registry": {"errors", "cells", "stages", "stages.*.report"},
    "worker": {"errors", "cells"},
    "measure_command": {"errors", "cells", "printing", "registry", "subjects.naming"},
    "check_command": {"errors", "cells", "printing", "registry", "subjects", "subjects.naming"},
    "account_command": {"errors", "cells", "formulas", "report", "stages", "stages.*.report"},
    "compare_command": {"errors", "cells", "compare", "registry", "report"},
    "run_command": {"errors"},
    "cli": {f"{name}_command" for name in ("account", "check", "compare", "measure", "run")}
    | {"cells", "describe", "doctor", "errors", "printing", "registry", "report", "snapshots", "worker"},
    "__main__": {"cli"},
}
# A worker's child starts the command line by name. (A stage's parts are imported by the registry's package name.)
BY_NAME = {("worker.child", "cli")}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def package_of(module: str) -> str:
    parts = module.split(".")
    if parts[0] == "stages" and parts[2:3] and parts[2].startswith("report"):
        return "stages.*.report"
    return max((name for name in ALLOWED if parts[: len(name.split("."))] == name.split(".")), key=len, default=module)


@cache
def imports(path: Path) -> list[str]:
    """Return what a module imports from the package, without `pipeline.`; for a name built at run time, its start."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [ast.unparse(node.args[0]).lstrip("f").strip("'\"").replace("{stage}", "any")]
        else:
            continue
        found += [name.removeprefix("pipeline.") for name in names if name.startswith("pipeline.")]
    return found


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@pytest.mark.parametrize("module", [name for name in MODULES if name != "__init__"])
def test_modules_import_only_from_allowed_packages(module):
    allowed = {package_of(module), *ALLOWED[package_of(module)]}
    crossing = {name: package_of(name) for name in imports(MODULES[module]) if package_of(name) not in allowed}
    assert not {name: to for name, to in crossing.items() if (module, to) not in BY_NAME}


def imported_modules(module: str) -> set[str]:
    """Return the modules that a module imports anywhere; for a name inside a module, that module."""
    parts = (name.split(".") for name in imports(MODULES[module]))
    heads = ([".".join(names[:length]) for length in range(len(names), 0, -1)] for names in parts)
    return {found for names in heads if (found := next((name for name in names if name in MODULES), module)) != module}


def test_imports_have_no_cycle():
    # Imports inside functions count too: a module that has to import back has code in the wrong place.
    try:
        TopologicalSorter({module: imported_modules(module) for module in MODULES}).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")


def test_the_package_does_not_import_tools():
    assert not [path for path in MODULES.values() if re.search(r"^\s*(from|import) tools\b", path.read_text(), re.M)]


@pytest.mark.parametrize("stage", NAMES)
def test_no_stage_imports_another(stage):
    modules = [name for name in MODULES if name.startswith(f"stages.{stage}.")]
    assert modules
    reached = {name.split(".")[1] for module in modules for name in imports(MODULES[module]) if "stages." in name}
    assert reached == {stage}


@pytest.mark.parametrize("stage", NAMES)
def test_measuring_reaches_neither_the_report_nor_the_code_that_runs_cells(stage):
    # Otherwise a change to either would make all cells stale.
    reached = {name.removeprefix("pipeline.") for name in reached_modules(f"pipeline.stages.{stage}.measure")}
    assert not {name for name in reached if package_of(name) in ("report", "stages.*.report")}
    assert not reached & {"cells.run", "cells.freshness", "cells.sources"}
