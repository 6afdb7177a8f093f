"""Find and read the source files of an implementation without running it."""

import ast
import contextlib
import difflib
import hashlib
import importlib.util
import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from pipeline.errors import UserError
from pipeline.syntax import reached, tree_digest

PLACE = re.compile(r"(?P<target>[^\0]+):(?P<attribute>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)", re.ASCII)
MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
# Any of these marks a project's root folder.
PROJECT_MARKS = ("pyproject.toml", "setup.py", ".git")
INSTALLED = {"site-packages", "dist-packages"}
# A string that may be the name of a file to read, such as the source of a CUDA kernel.
FILE_NAME = re.compile(r"[\w./-]+\.\w+")
LARGE_BYTES = 64 * 2**20  # larger files are identified by size and modification time, not by content


@dataclass(frozen=True)
class Source:
    """A module to import: its file, its name, the folder to import it from, and the project that it belongs to."""

    file: Path
    module: str
    root: Path
    project: Path


def split_place(place: str) -> tuple[str, str]:
    """Split `module:attribute` or `file.py:attribute`; raises UserError if it is neither."""
    match = PLACE.fullmatch(place)
    if match is None or not (match["target"].endswith(".py") or MODULE.fullmatch(match["target"])):
        raise UserError(f"'{place}' must be module:attribute or file.py:attribute")
    return match["target"], match["attribute"]


def find(target: str) -> Source:
    """Find a module by file or name (working directory, PYTHONPATH, installed); raises UserError if there is none."""
    return _from_file(Path(target)) if target.endswith(".py") else _from_name(target)


def check_location(place: str, where: str) -> None:
    """Raise UserError, one line, if a place has no file, or if the file is not valid Python or lacks the attribute."""
    try:
        target, attribute = split_place(place)
        source = find(target)
        names, is_all = _names(source)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if is_all and attribute.partition(".")[0] not in names:
        close = difflib.get_close_matches(attribute, names, 1)
        own = [each.name for each in _tree(source.file).body if isinstance(each, ast.FunctionDef | ast.ClassDef)]
        defined = ", ".join(own or sorted(names)) or "nothing"
        known = f"did you mean '{close[0]}'?" if close else f"it defines {defined}"
        raise UserError(f"{where}: {target} does not define '{attribute}'; {known}")


def defined_names(file: str, where: str) -> set[str]:
    """Return the names that a file defines or imports at top level; raises UserError if it is not a Python file."""
    if not file.endswith(".py"):
        raise UserError(f"{where} must be a mapping of kinds or the path of a .py file of adapters, got '{file}'")
    try:
        return _names(find(file))[0]
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def digest(places: Iterable[str]) -> str:
    """Return a digest of the code at these places and of all files of its project that it imports or names."""
    files: dict[str, str] = {}
    for place in places:
        source = find(split_place(place)[0])
        first = [source.file, *_packages(source.file, source.root)]
        for path in reached(first, partial(_imported, source)):
            files[os.path.relpath(path, source.root)] = _file_digest(path)
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]


def _from_file(path: Path) -> Source:
    file = path.absolute()
    if not file.is_file():
        raise UserError(f"there is no file {file}")
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    return Source(file, ".".join(file.relative_to(root).with_suffix("").parts), root, _project(file, root))


def _from_name(name: str) -> Source:
    first, *rest = name.split(".")
    # Not sys.path alone: a worker's was set when the worker started.
    here = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    spec = PathFinder.find_spec(first, here) or _installed(first)
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            spec = None
            break
        spec = PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise UserError(f"there is no Python module {name} in {os.getcwd()}, PYTHONPATH or what is installed")
    file = Path(spec.origin).absolute()
    package = file.parent if file.name == "__init__.py" else file
    root = package.parents[len(rest)]
    return Source(file, name, root, _project(file, root))


def _installed(name: str) -> ModuleSpec | None:
    """Find a top-level module as an import would, editable installs included, without running it."""
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # a loaded module that has no spec, such as `__main__`
        return None


def _project(file: Path, root: Path) -> Path:
    """Return the nearest folder above a file that is a project's root; for an installed file, its package."""
    if INSTALLED & set(file.parts):
        return root / file.relative_to(root).parts[0] if file.parent != root else file
    return next((folder for folder in file.parents if any((folder / mark).exists() for mark in PROJECT_MARKS)), root)


def _tree(file: Path) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an import will show them
            return ast.parse(file.read_bytes(), filename=str(file))
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None
    except (RecursionError, MemoryError):
        raise UserError(f"{file}: an expression in it is nested too deeply") from None
    except (SyntaxError, ValueError) as error:
        line = f" line {error.lineno}:" if isinstance(error, SyntaxError) else ""
        raise UserError(f"{file}:{line} no valid Python: {getattr(error, 'msg', error)}") from None


def _names(source: Source) -> tuple[set[str], bool]:
    """Return the names that a module defines or gets by `import *`, and whether these are certainly all."""
    names: set[str] = set()
    is_all = True

    def read(path: Path) -> Iterator[Path]:
        nonlocal is_all
        own, stars = _names_and_stars(_tree(path))
        names.update(own if path == source.file else (name for name in own if not name.startswith("_")))
        for star in stars:
            # The last is the module; before it come its packages.
            files = list(_imported_by(star, path, source))
            is_all &= bool(files)
            yield from files[-1:] or _elsewhere(star)

    list(reached([source.file], read))
    return names, is_all


def _names_and_stars(tree: ast.Module) -> tuple[set[str], list[ast.ImportFrom]]:
    """Return the names that a module itself defines at top level, branches included, and its `from … import *`."""
    names: set[str] = set()
    stars: list[ast.ImportFrom] = []
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
                continue
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                stars.append(node)
            case ast.Import() | ast.ImportFrom():
                names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
        waiting.extend(ast.iter_child_nodes(node))
    return names, stars


def _elsewhere(star: ast.ImportFrom) -> list[Path]:
    """Return the file of a star-imported module that is installed or in PYTHONPATH; empty if it has no source."""
    try:
        return [] if star.level or star.module is None else [find(star.module).file]
    except UserError:
        return []


def _packages(file: Path, root: Path) -> list[Path]:
    """Return what importing a module runs first: the `__init__.py` of its packages."""
    folders = [folder for folder in file.parents if folder.is_relative_to(root) and folder != root]
    return [init for folder in folders if (init := folder / "__init__.py").is_file()]


def _imported(source: Source, path: Path) -> Iterator[Path]:
    """Yield the project's files that a file imports or names."""
    for node in ast.walk(_tree(path)) if path.suffix == ".py" else ():
        match node:
            case ast.Import():
                for alias in node.names:
                    yield from _module_files(alias.name, source)
            case ast.ImportFrom():
                yield from _imported_by(node, path, source)
            case ast.Constant(value=str(text)) if FILE_NAME.fullmatch(text):
                named = path.parent / text
                if named.is_file() and named.resolve().is_relative_to(source.project.resolve()):
                    yield named


def _imported_by(node: ast.ImportFrom, path: Path, source: Source) -> Iterator[Path]:
    if not node.level:
        for name in (node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)):
            yield from _module_files(name, source)
    elif node.level <= len(path.parents):  # else it points above the root folder
        base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
        for file in (base, *(base / alias.name for alias in node.names)):
            yield from _as_module(file)


def _module_files(name: str, source: Source) -> Iterator[Path]:
    parts = name.split(".")
    for folder in dict.fromkeys((source.root, source.project, source.project / "src", Path.cwd())):
        found = [file for end in range(1, len(parts) + 1) for file in _as_module(folder.joinpath(*parts[:end]))]
        if found:
            yield from (file for file in found if file.is_relative_to(source.project))
            return


def _as_module(path: Path) -> list[Path]:
    candidates = (path.with_name(f"{path.name}.py"), path / "__init__.py")
    return [candidate for candidate in candidates if candidate.is_file()]


def _file_digest(path: Path) -> str:
    if path.suffix == ".py":
        with contextlib.suppress(RecursionError):  # nested too deeply for the digest, although Python compiles it
            return tree_digest(_tree(path))
    size, time_ns = path.stat().st_size, path.stat().st_mtime_ns
    if size > LARGE_BYTES:  # such as weights, which would be read whenever the workflow plans
        return f"{size} bytes of {time_ns}"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
