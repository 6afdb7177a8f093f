"""Digests of the project's own modules, and what they import and read, from their source text alone."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pipeline
from pipeline.cells import module_texts
from pipeline.syntax import reached

PACKAGE = "pipeline"
SOURCES = Path(pipeline.__file__).parent.parent


@dataclass(frozen=True)
class _Module:
    """What the text of a module says: the digest of its code, and what it imports and reads."""

    digest: str | None = None
    imports: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    variables: tuple[str, ...] = ()


def module_digest(name: str) -> str | None:
    """Return a digest of a module's code, ignoring comments, docstrings and layout; None if it does not exist."""
    return _module(name).digest


def code_digest(modules: Iterable[str]) -> str:
    """Return a digest of the code of modules."""
    return digest({name: module_digest(name) for name in modules})


def file_digest(path: Path) -> str:
    """Return a digest of a file's content: unlike its path and time, the same in every checkout."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def digest(value: object) -> str:
    """Return a digest of what JSON can hold, whatever the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def reached_modules(*modules: str) -> set[str]:
    """Return these modules and all they import, directly or not, inside the package, wherever the import stands."""
    # Importing a.b.c runs a.b, and before that a: what they do counts too.
    return {*reached(modules, lambda name: [*_module(name).imports, *filter(None, [name.rpartition(".")[0]])])}


def data_files(modules: Iterable[str]) -> list[Path]:
    """Return the data files next to modules that they read: those they name, and those with the module's name."""
    return sorted({path for name in modules for path in _module(name).files})


def variables(modules: Iterable[str]) -> list[str]:
    """Return this project's environment variables that the modules name."""
    return sorted({name for module in modules for name in _module(module).variables})


@cache
def source_path(name: str) -> Path | None:
    """Return the source file of a module of the package; None if there is none."""
    # Not importlib.util.find_spec: it imports the parent packages, and with them torch.
    path = SOURCES.joinpath(*name.split("."))
    candidates = (path.with_name(f"{path.name}.py"), path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def forget() -> None:
    """Clear the caches, because files may have changed since."""
    source_path.cache_clear()
    _module.cache_clear()


@cache
def _module(name: str) -> _Module:
    path = source_path(name)
    if path is None:
        return _Module()
    text = module_texts.read(path)
    files = {path.parent / word for word in text.files} | {*path.parent.glob(f"{path.stem}.*")}
    return _Module(
        text.digest,
        tuple(name for name in text.imports if name.partition(".")[0] == PACKAGE and source_path(name)),
        tuple(file for file in files if file.is_file() and file.suffix != ".py"),
        tuple(text.variables),
    )
