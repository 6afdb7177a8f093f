"""When a cell is stale: a digest of the code that makes its figures, and of what that code runs on."""

import ast
import hashlib
from functools import cache
from pathlib import Path

import pipeline

PACKAGE = "pipeline"
SOURCES = Path(pipeline.__file__).parent.parent


def code_digest(module: str) -> str:
    """Return a digest of the code that a module reaches by import inside the package, itself included.

    Taken over the syntax trees without docstrings, so that comments, docstrings and layout do not count.
    """
    digest = hashlib.sha256()
    for name in sorted(reached_modules(module)):
        digest.update(f"{name}\n{_significant_code(_source_path(name))}\n".encode())
    return digest.hexdigest()[:16]


def file_digest(path: Path) -> str:
    """Return a digest of a file's content: unlike its path and time, the same in every checkout."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def reached_modules(module: str) -> set[str]:
    """Return the modules of the package that a module reaches by import, wherever the import stands."""
    reached, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        waiting.extend(_imported_modules(_source_path(name)))
        # Importing a.b.c runs a and a.b first: what they do counts too.
        waiting.extend(parent for parent in _parents(name))
    return reached


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


@cache
def _source_path(name: str) -> Path | None:
    # Not importlib.util.find_spec: it runs the parent packages, and with them torch.
    place = SOURCES.joinpath(*name.split("."))
    candidates = (place.parent / f"{place.name}.py", place / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


@cache
def _imported_modules(path: Path | None) -> list[str]:
    if path is None:
        return []
    names = []
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            # `from package import name`: the name may be a module of its own.
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    inside = [name for name in names if name.split(".")[0] == PACKAGE]
    return [name for name in inside if _source_path(name) is not None]


@cache
def _significant_code(path: Path | None) -> str:
    if path is None:
        return ""
    tree = _tree(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            _drop_docstring(node)
    return _text(tree)


def _text(node: object) -> str:
    """Write a syntax tree as text that is the same under every Python that knows its nodes.

    Not with `ast.dump`, which also writes empty fields: later versions have some that earlier ones lack.
    """
    if isinstance(node, ast.AST):
        fields = [f"{name}={_text(value)}" for name, value in ast.iter_fields(node) if value not in (None, [])]
        return f"{type(node).__name__}({', '.join(fields)})"
    if isinstance(node, list):
        return f"[{', '.join(map(_text, node))}]"
    return repr(node)


def _drop_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    if ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:]
