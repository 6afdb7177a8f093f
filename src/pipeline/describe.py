"""Print a stage's question, axes, settings and row columns from its declarations."""

import inspect
from collections.abc import Iterable
from dataclasses import Field, fields

from tabulate import tabulate

from pipeline.cells.fields import text
from pipeline.cells.rows import Row, columns
from pipeline.cells.stage import SETTING, Stage

LEAST_WIDTH = 40  # characters, of the second and third columns together


def described(stage: Stage, width: int | None = None) -> str:
    """Return a stage's declarations as Markdown; if `width` (characters) is given, with plain tables that fit it."""
    axes = _table(["axis", "allowed", "default"], map(_field_line, fields(stage.cell_type)), width)
    settings = _table(["setting", "allowed", "default"], map(_field_line, fields(stage.settings_type)), width)
    types = stage.row_types.types
    kinds = {row_type: ", ".join(kind for kind in types if types[kind] is row_type) for row_type in types.values()}
    rows = [
        _columns_part(f"{stage.row_types.kind_column}={kind}" if kind else "", row_type, width)
        for row_type, kind in kinds.items()
    ]
    cell, shared = (inspect.getdoc(part) for part in (stage.cell_type, stage.settings_type))
    shared = f"{shared} In tables their names begin with `{SETTING}`."
    axes, settings = f"### Axes\n\n{cell}\n\n{axes}", f"### Settings\n\n{shared}\n\n{settings}"
    return "\n\n".join([f"## {stage.name}", stage.question, axes, settings, *rows])


def _columns_part(title: str, row_type: type[Row], width: int | None) -> str:
    lines = [
        [item.name, f"{item.meaning}{' (derived)' if item.derived else ''}", item.limits]
        for item in columns(row_type).values()
    ]
    table = _table(["column", "meaning", "allowed"], lines, width)
    suffix = f" of {title}" if title else ""
    return f"### Rows{suffix}\n\n{inspect.getdoc(row_type)}\n\n{table}"


def _field_line(item: Field) -> list[str]:
    allowed, minimum = item.metadata["allowed"], item.metadata["minimum"]
    kind = {bool: "true, false", int: "a whole number", float: "a number", str: "a name"}[type(item.default)]
    if allowed:
        kind = ", ".join(map(text, allowed))
    elif minimum is not None:
        kind = f"{kind}, at least {minimum:g}"
    return [item.name, kind, text(item.default)]


def _table(head: list[str], lines: Iterable[list[str]], width: int | None) -> str:
    if width is None:
        escaped = [[f"`{first}`", *rest] for first, *rest in lines]
        return tabulate(escaped, head, tablefmt="pipe", disable_numparse=True)
    rows = list(lines)
    longest = max((len(first) for first, *_ in rows), default=0)
    available = max(width - longest - 4, LEAST_WIDTH)  # minus two spaces between columns
    widths = [None, available * 3 // 5, available * 2 // 5]
    return tabulate(rows, head, tablefmt="simple", disable_numparse=True, maxcolwidths=widths)
