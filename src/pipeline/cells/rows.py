"""Rows are typed: a stage declares a frozen dataclass for each kind of row that its cells leave."""

import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from pipeline.subjects.naming import NAME

# From the best outcome of a row to the worst.
STATUSES = ("ok", "unstable", "skipped", "oom", "wrong")
WITH_FIGURES = ("ok", "unstable")


def column(
    meaning: str,
    *,
    allowed: tuple[Any, ...] = (),
    minimum: float | None = None,
    positive: bool = False,
    or_subject: bool = False,
) -> Any:
    """Declare a column: what it means, in words that stand behind its name, and the values it may take.

    The name carries the unit. Only a column of type `X | None` may be missing from a row that has figures.
    or_subject: beside what is allowed, it may hold the name of an implementation of the user's own.
    """
    return field(default=None, metadata=_Limits(meaning, allowed, minimum, positive, or_subject).__dict__)


@dataclass(frozen=True)
class _Limits:
    meaning: str
    allowed: tuple[Any, ...]
    minimum: float | None
    positive: bool
    or_subject: bool


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row per measurement: what it is of, what came of it, and its figures."""

    # The columns that tell the rows of a cell apart.
    KEYS: ClassVar[tuple[str, ...]] = ()
    # Rows with these values are of a reference to read: nobody compares their times, and cells are not judged by them.
    REFERENCE: ClassVar[Mapping[str, Any]] = {}

    status: str = column("what came of it", allowed=STATUSES)
    reason: str | None = column("why there is no figure, or an unstable one")


OUTCOME = tuple(item.name for item in fields(Row))


@dataclass(frozen=True)
class Column:
    """One column of a kind of row, as tables have it."""

    name: str
    meaning: str
    type: type
    is_list: bool
    optional: bool
    allowed: tuple[Any, ...]
    minimum: float | None
    positive: bool
    or_subject: bool

    @property
    def limits(self) -> str:
        """Say what the column may hold: `a number above 0`, `forward, backward`."""
        if self.allowed:
            own = ("or a name of your own",) if self.or_subject else ()
            return ", ".join(map(str, (*self.allowed, *own)))
        words = {str: "text", bool: "true or false", int: "a whole number", float: "a finite number"}[self.type]
        if self.positive:
            words = f"{words} above 0"
        elif self.minimum is not None:
            words = f"{words}, at least {self.minimum:g}"
        return f"a list, each {words}" if self.is_list else words

    def accepts(self, value: Any) -> bool:
        """Tell whether a row may have this value, as JSON gives it, in this column."""
        if not self.is_list:
            return self._accepts_one(value)
        return isinstance(value, list) and all(map(self._accepts_one, value))

    def _accepts_one(self, value: Any) -> bool:
        if self.type in (str, bool):
            sound = isinstance(value, self.type)
        elif isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return False
        else:
            sound = self.type is float or value == int(value)
        if not sound or (self.allowed and value not in self.allowed and not self._is_subject(value)):
            return False
        return not (self.positive and value <= 0) and (self.minimum is None or value >= self.minimum)

    def _is_subject(self, value: Any) -> bool:
        return self.or_subject and NAME.fullmatch(value) is not None


def columns(row_type: type[Row]) -> Mapping[str, Column]:
    """Return the columns of a kind of row by name: its keys, the outcome, the figures as declared, lists at the end.

    Raises TypeError for a field that is no column, or of a type that tables cannot hold.
    """
    anything: Any = row_type  # mypy takes the class of a frozen dataclass for unhashable
    return _columns(anything)


@cache
def _columns(row_type: Any) -> Mapping[str, Column]:
    hints = get_type_hints(row_type)
    named = {item.name: _column(item.name, hints[item.name], item.metadata) for item in fields(row_type)}
    first = dict.fromkeys([*row_type.KEYS, *OUTCOME])
    lists = [name for name, item in named.items() if item.is_list]
    return {name: named[name] for name in (*first, *(name for name in named if name not in [*first, *lists]), *lists)}


def _column(name: str, hint: Any, limits: Mapping[str, Any]) -> Column:
    options = [each for each in get_args(hint) if each is not NoneType] if isinstance(hint, UnionType) else [hint]
    is_list = get_origin(options[0]) is list
    kind = get_args(options[0])[0] if is_list else options[0]
    if len(options) != 1 or kind not in (str, int, float, bool) or "meaning" not in limits:
        raise TypeError(f"{name} is no column: declare `name: type = column(meaning)`, of text, numbers or bools")
    return Column(name, type=kind, is_list=is_list, optional=isinstance(hint, UnionType), **limits)


@dataclass(frozen=True)
class RowTypes:
    """The kinds of rows of a stage, by their values in one column or axis where there are several."""

    types: Mapping[str, type[Row]]
    kind_column: str = ""

    @classmethod
    def one(cls, row_type: type[Row]) -> "RowTypes":
        """Return the row types of a stage that has one."""
        return cls({"": row_type})

    def of(self, cell: Mapping[str, Any], row: Mapping[str, Any]) -> type[Row]:
        """Return the type of a row; raises ValueError where its kind is unknown."""
        kind = {**cell, **row}.get(self.kind_column, "")
        if kind not in self.types:
            raise ValueError(f"{self.kind_column} must be one of {', '.join(self.types)}, got {reprlib.repr(kind)}")
        return self.types[kind]

    def key_columns(self) -> tuple[str, ...]:
        """Return the columns that tell the rows of a cell apart, of all its kinds."""
        own = [self.kind_column] if any(self.kind_column in columns(each) for each in self.types.values()) else []
        return tuple(dict.fromkeys([*own, *(key for each in self.types.values() for key in each.KEYS)]))

    def column_names(self) -> tuple[str, ...]:
        """Return the columns of all kinds of rows: the keys, the outcome, the figures."""
        names = [name for each in self.types.values() for name in columns(each)]
        return tuple(dict.fromkeys([*self.key_columns(), *OUTCOME, *names]))

    def names(self) -> frozenset[str]:
        """Return the implementations that rows may be of, but for the user's own."""
        every = [item for each in self.types.values() for item in columns(each).values()]
        return frozenset(name for item in every if item.or_subject for name in item.allowed)

    def is_reference(self, row: Mapping[str, Any]) -> bool:
        """Tell whether a row is of a reference, by which no cell is judged."""
        references = [each.REFERENCE for each in self.types.values() if each.REFERENCE]
        return any(all(row.get(name) == value for name, value in marks.items()) for marks in references)

    def check(self, cell: Mapping[str, Any], rows: Sequence[Any]) -> None:
        """Check the rows of a cell against their declarations.

        Raises ValueError, one line, that names the row, the column, its value and what is allowed.
        """
        complaint = next(self._complaints(cell, rows), None)
        if complaint is not None:
            raise ValueError(complaint)

    def _complaints(self, cell: Mapping[str, Any], rows: Sequence[Any]) -> Iterator[str]:
        first: dict[tuple, int] = {}
        for number, row in enumerate(rows, start=1):
            if not isinstance(row, dict):
                yield f"row {number} must be an object, got {reprlib.repr(row)}"
            try:
                row_type = self.of(cell, row)
            except ValueError as error:
                yield f"row {number}: {error}"
                return
            yield from (f"row {number}: {words}" for words in _row_complaints(row, columns(row_type), row_type.KEYS))
            key = (row_type, *(row.get(name) for name in row_type.KEYS))
            if first.setdefault(key, number) != number:
                named = " ".join(f"{name}={row.get(name)}" for name in row_type.KEYS)
                why = named or f"{row_type.__name__} has no KEYS to tell rows apart"
                yield f"row {number} is of the same as row {first[key]}: {why}"


def _row_complaints(row: Mapping[str, Any], known: Mapping[str, Column], keys: Sequence[str]) -> Iterator[str]:
    status = row.get("status")
    if status not in STATUSES:
        yield f"status must be one of {', '.join(STATUSES)}, got {reprlib.repr(status)}"
    for name, value in row.items():
        if name not in known:
            yield f"unknown column {reprlib.repr(name)}: must be one of {', '.join(known)}"
        elif value is not None and not known[name].accepts(value):
            yield f"{name} must be {_one_of(known[name])}, got {reprlib.repr(value)}"
    for name, item in known.items():
        if row.get(name) is None and not item.optional and (status in WITH_FIGURES):
            yield f"{name} is missing: must be {_one_of(item)}"


def _one_of(item: Column) -> str:
    return f"one of {item.limits}" if item.allowed else item.limits
