"""Print a stage's question, axes, settings and row columns from its declarations."""

import inspect
from collections.abc import Iterable
from dataclasses import Field, fields

from tabulate import tabulate

from pipeline.cells.fields import text
from pipeline.cells.rows import Row, columns
from pipeline.cells.stage import SETTING, Stage


def described(stage: Stage) -> str:
    """Return Markdown: the question, axes and settings with ranges and defaults, and the columns of each row type."""
    axes = _table(["axis", "allowed", "default"], map(_field_line, fields(stage.cell_type)))
    settings = _table(["setting", "allowed", "default"], map(_field_line, fields(stage.settings_type)))
    types = stage.row_types.types
    kinds = {row_type: ", ".join(kind for kind in types if types[kind] is row_type) for row_type in types.values()}
    rows = [
        _columns_part(f"{stage.row_types.kind_column}={kind}" if kind else "", row_type)
        for row_type, kind in kinds.items()
    ]
    cell, shared = (inspect.getdoc(part) for part in (stage.cell_type, stage.settings_type))
    parts = [
        f"## {stage.name}",
        stage.question,
        f"### Axes\n\n{cell}\n\n{axes}",
        f"### Settings\n\n{shared} In tables their names begin with `{SETTING}`.\n\n{settings}",
        *rows,
    ]
    return "\n\n".join(parts)


def _columns_part(title: str, row_type: type[Row]) -> str:
    lines = [[item.name, item.meaning, item.limits] for item in columns(row_type).values()]
    table = _table(["column", "meaning", "allowed"], lines)
    of = f" of {title}" if title else ""
    return f"### Rows{of}\n\n{inspect.getdoc(row_type)}\n\n{table}"


def _field_line(item: Field) -> list[str]:
    allowed, minimum = item.metadata["allowed"], item.metadata["minimum"]
    kind = {bool: "true, false", int: "a whole number", float: "a number", str: "a name"}[type(item.default)]
    if allowed:
        kind = ", ".join(map(text, allowed))
    elif minimum is not None:
        kind = f"{kind}, at least {minimum:g}"
    return [item.name, kind, text(item.default)]


def _table(head: list[str], lines: Iterable[list[str]]) -> str:
    escaped = [[f"`{first}`", *rest] for first, *rest in lines]
    return tabulate(escaped, head, tablefmt="pipe", disable_numparse=True)
