"""The code of a Python file without its comments, docstrings and layout, as a digest."""

import ast
import hashlib

_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def tree_digest(tree: ast.Module) -> str:
    """Return a digest of a syntax tree without its docstrings."""
    text: list[str] = []
    _write(tree, text)
    return hashlib.sha256(" ".join(text).encode()).hexdigest()[:16]


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
    return body


def _write(node: object, text: list[str]) -> None:
    """Write a syntax tree as words that are the same under every Python that knows its nodes.

    Not with `ast.dump`, which also writes empty fields: later versions have some that earlier ones lack.
    """
    if isinstance(node, ast.AST):
        text += (type(node).__name__, "(")
        for name in node._fields:
            value = getattr(node, name, None)
            if name == "body" and isinstance(node, _Documented):
                value = _without_docstring(node.body)
            if value is not None and value != []:
                text += (name, "=")
                _write(value, text)
        text.append(")")
    elif isinstance(node, list):
        text.append("[")
        for item in node:
            _write(item, text)
        text.append("]")
    else:
        text.append(repr(node))
