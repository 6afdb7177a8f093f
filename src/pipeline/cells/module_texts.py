"""Extract facts from a module's source and cache them beside its bytecode: parsing all is a third of a no-op run."""

import ast
import contextlib
import hashlib
import importlib.util
import json
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline import syntax

FILE_NAME = re.compile(r"[\w-]+(\.[\w-]+)+")
# This project's environment variables.
VARIABLE = re.compile(r"PIPELINE_[A-Z_]+")
# Part of the cache key, because the facts depend on this code too.
EXTRACTOR_CODE = b"".join(Path(file).read_bytes() for file in (__file__, syntax.__file__))


@dataclass(frozen=True)
class ModuleText:
    """The digest of a module's code, its imports, and its strings that may name a file or an environment variable."""

    digest: str
    imports: list[str]
    files: list[str]
    variables: list[str]


def read(path: Path) -> ModuleText:
    """Return the facts of a source file; parse it only if no process has cached them since it changed."""
    content = path.read_bytes()
    key = hashlib.sha256(EXTRACTOR_CODE + content).hexdigest()
    cache_path = Path(importlib.util.cache_from_source(str(path))).with_suffix(".facts")
    with contextlib.suppress(OSError, ValueError, TypeError):
        cached = json.loads(cache_path.read_bytes())
        if isinstance(cached, dict) and cached.pop("of", None) == key:
            return ModuleText(**cached)
    text = _parse(content, path)
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError):  # as for bytecode: the folder may be another user's
            cache_path.parent.mkdir(parents=True, exist_ok=True)
            cache_path.write_text(json.dumps({"of": key, **asdict(text)}), encoding="utf-8")
    return text


def _parse(content: bytes, path: Path) -> ModuleText:
    digest, nodes = syntax.digest_and_nodes(ast.parse(content, filename=str(path)))
    imports = [name for node in (*nodes[ast.Import], *nodes[ast.ImportFrom]) for name in _imported_names(node)]
    strings = {node.value for node in nodes[ast.Constant] if isinstance(node.value, str)}
    files, variables = (
        [string for string in strings if pattern.fullmatch(string)] for pattern in (FILE_NAME, VARIABLE)
    )
    return ModuleText(digest, imports, files, variables)


def _imported_names(node: ast.Import | ast.ImportFrom) -> list[str]:
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.Import):
        return names
    # `from package import name`: the name may itself be a module.
    return [node.module, *(f"{node.module}.{name}" for name in names)] if node.module and not node.level else []
