"""Digests of Python code that ignore comments, docstrings and layout; and a graph traversal for imports."""

import ast
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
Nodes = dict[type, list[Any]]  # by their type
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def reached(first: Iterable[T], following: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yield the first items and all that are reachable from them by `following`, each once."""
    seen: set[T] = set()
    waiting = list(first)
    while waiting:
        if (each := waiting.pop()) not in seen:
            seen.add(each)
            yield each
            waiting.extend(following(each))


def tree_digest(tree: ast.Module) -> str:
    """Return a digest of a syntax tree without its docstrings."""
    return digest_and_nodes(tree)[0]


def digest_and_nodes(tree: ast.Module) -> tuple[str, Nodes]:
    """Return a digest of a syntax tree without its docstrings, and its nodes by their type: in one walk."""
    text: list[str] = []
    nodes: Nodes = defaultdict(list)
    _write(tree, text, nodes)
    return hashlib.sha256(" ".join(text).encode()).hexdigest()[:16], nodes


def _write(node: object, text: list[str], nodes: Nodes) -> None:
    """Write a syntax tree as words that are the same in every Python version that has its nodes.

    `ast.dump` would not do: it also writes empty fields, and later versions add some.
    """
    if isinstance(node, ast.AST):
        nodes[type(node)].append(node)
        text += (type(node).__name__, "(")
        for name in node._fields:
            value = getattr(node, name, None)
            if name == "body" and isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
                value = node.body[1:]
            if value is not None and value != []:
                text += (name, "=")
                _write(value, text, nodes)
        text.append(")")
    elif isinstance(node, list):
        text.append("[")
        for item in node:
            _write(item, text, nodes)
        text.append("]")
    else:
        text.append(repr(node))
