"""Typed, constrained fields of the frozen dataclasses `Cell` and `Settings`, read from words, YAML or grids of axes."""

import itertools
import math
import re
import reprlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.errors import UserError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
# What text may look like if no values are declared: it becomes part of paths and commands.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]*")
# What a value of each type is called.
KINDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a name"}


def axis(default: Any, *, allowed: Collection = (), minimum: float | None = None) -> Any:
    """Declare a field of a cell or its settings with its allowed values; text without any must match NAME."""
    return field(default=default, metadata={"allowed": allowed, "minimum": minimum})


def build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Build a frozen dataclass from words or YAML values; raises UserError, one line, calling their source `where`."""
    known = {item.name: item for item in fields(cls)}
    for key in values:
        if key not in known:
            raise UserError(f"{where}: unknown key '{key}': must be one of {', '.join(known)}")
    return cls(**{key: _checked(known[key], value, where) for key, value in values.items()})


def expand(cell_type: type[T], grids: Iterable[Mapping[str, Any]], where: str) -> list[T]:
    """Expand grids, each a cartesian product of the axes it lists, into distinct cells in order.

    An axis left out takes its default. Raises UserError as `build` does.
    """
    cells: dict[T, None] = {}
    for grid in grids:
        axes = {axis: values if isinstance(values, list) else [values] for axis, values in grid.items()}
        for point in itertools.product(*axes.values()):
            cells[build(cell_type, dict(zip(axes, point, strict=True)), where)] = None
    return list(cells)


def value_patterns(cls: "type[DataclassInstance]", name: str) -> dict[str, str]:
    """Return regular expressions for a field's values in a path, by their readable form: `*` for any number."""
    item = next(item for item in fields(cls) if item.name == name)
    listed = {text(value): re.escape(text(value)) for value in item.metadata["allowed"]}
    return {"*": "[1-9][0-9]*"} if not listed and type(item.default) is int else listed


def texts(instance: "DataclassInstance") -> dict[str, str]:
    """Return every field as text, in declared order."""
    return {item.name: text(getattr(instance, item.name)) for item in fields(instance)}


def words(instance: "DataclassInstance") -> list[str]:
    """Return `name=value` for every field, in declared order; `parse_words` reads them back."""
    return [f"{name}={value}" for name, value in texts(instance).items()]


def text(value: Any) -> str:
    """Return the one spelling of a value that paths, commands and parameters share."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_words(cls: type[T], given: list[str], where: str) -> T:
    """Build a dataclass from `name=value` words; the fields left out take their defaults."""
    values = {}
    for word in given:
        key, separator, value = word.partition("=")
        if not separator:
            raise UserError(f"{where}: '{word}' is not of the form name=value")
        if key in values:
            raise UserError(f"{where}: '{key}' is given twice")
        values[key] = value
    return build(cls, values, where)


def _checked(item: Field, value: Any, where: str) -> Any:
    typed = _typed(item, value, where)
    allowed, minimum = item.metadata.get("allowed"), item.metadata.get("minimum")
    shown = reprlib.repr(text(typed))
    if allowed and typed not in allowed:
        raise UserError(f"{where}: {item.name} must be one of {', '.join(map(text, allowed))}, got {shown}")
    if isinstance(typed, str) and not allowed and not NAME.fullmatch(typed):
        raise UserError(
            f"{where}: {item.name} must be letters, digits and ._:+-, starting with a letter or digit, got {shown}"
        )
    if minimum is not None and typed < minimum:
        raise UserError(f"{where}: {item.name} must be at least {minimum}, got {text(typed)}")
    return typed


def _typed(item: Field, value: Any, where: str) -> Any:
    """Convert to the type of the field's default, strictly: 2.5 is not an int, 'yes' not a bool, inf not a float."""
    if item.default is MISSING:
        raise TypeError(f"field {item.name} needs a default: its type and value serve the cells that omit it")
    kind = type(item.default)
    try:
        if kind is bool:
            return {"true": True, "false": False}[text(value)]
        if isinstance(value, bool):
            raise ValueError
        converted = kind(value)
        if kind is int and converted != float(value):
            raise ValueError
        if kind is float and not math.isfinite(converted):
            raise ValueError
        return converted
    except (KeyError, ValueError, TypeError, OverflowError):
        shown = reprlib.repr(value)
        raise UserError(f"{where}: {item.name} must be {KINDS[kind]}, got {shown}") from None
