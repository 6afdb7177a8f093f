"""What the text of a module says, kept beside its bytecode: to parse them all is a third of a run without work."""

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
# This project's variables of the environment.
VARIABLE = re.compile(r"PIPELINE_[A-Z_]+")
# What is kept is of this code too.
RULES = b"".join(Path(file).read_bytes() for file in (__file__, syntax.__file__))


@dataclass(frozen=True)
class ModuleText:
    """The digest of a module's code, what it imports, and its words that may name a file or a variable."""

    digest: str
    imports: list[str]
    files: list[str]
    variables: list[str]


def read(path: Path) -> ModuleText:
    """Return what the text of a file says; parsed only where no process has kept it since the text changed."""
    content = path.read_bytes()
    key = hashlib.sha256(RULES + content).hexdigest()
    place = Path(importlib.util.cache_from_source(str(path))).with_suffix(".facts")
    with contextlib.suppress(OSError, ValueError, TypeError):
        kept = json.loads(place.read_bytes())
        if isinstance(kept, dict) and kept.pop("of", None) == key:
            return ModuleText(**kept)
    text = _parse(content, path)
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError):  # as for bytecode: the folder may be another user's
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps({"of": key, **asdict(text)}), encoding="utf-8")
    return text


def _parse(content: bytes, path: Path) -> ModuleText:
    digest, nodes = syntax.digest_and_nodes(ast.parse(content, filename=str(path)))
    imports = [name for node in (*nodes[ast.Import], *nodes[ast.ImportFrom]) for name in _imported_names(node)]
    words = {node.value for node in nodes[ast.Constant] if isinstance(node.value, str)}
    files, variables = ([word for word in words if pattern.fullmatch(word)] for pattern in (FILE_NAME, VARIABLE))
    return ModuleText(digest, imports, files, variables)


def _imported_names(node: ast.Import | ast.ImportFrom) -> list[str]:
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.Import):
        return names
    # `from package import name`: the name may be a module of its own.
    return [node.module, *(f"{node.module}.{name}" for name in names)] if node.module and not node.level else []
