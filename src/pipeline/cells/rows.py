"""Rows are typed: a stage declares a frozen dataclass for each kind of row that its cells leave.

A record holds the columns that an instrument read. The others are derived from these, the cell and its settings
whenever a record is read, so that a better rule or a mended formula costs no new measurement.
"""

import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from pipeline.subjects.naming import NAME

# From the best outcome of a row to the worst.
STATUSES = ("ok", "unstable", "skipped", "oom", "wrong", "failed")
WITH_VALUES = ("ok", "unstable")
# That a time is unstable is derived from its samples.
RECORDED_STATUSES = tuple(status for status in STATUSES if status != "unstable")


def column(meaning: str, **limits: Any) -> Any:
    """Declare a column: what it means beyond its name, which carries the unit; limits: as in Column.

    Only a column of type `X | None` may be missing from a row that has values.
    """
    return field(default=None, metadata={"meaning": meaning, **limits})


def derived(meaning: str, **limits: Any) -> Any:
    """Declare a column that records do not hold: the row type's `derive` returns it whenever a row is read."""
    return column(meaning, derived=True, **limits)


@dataclass(frozen=True)
class Reading:
    """What columns are derived from: one row as its record holds it, and the rest of the record, with all rows."""

    row: Mapping[str, Any]
    cell: Any
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    def beside(self, keys: Sequence[str], **values: Any) -> Mapping[str, Any] | None:
        """Return the row of the cell that differs in these values only, among `keys`; None where there is none."""
        wanted = {name: self.row.get(name) for name in keys} | values
        return next((row for row in self.rows if all(row.get(name) == wanted[name] for name in wanted)), None)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row per measurement: what it is of, what came of it, and its values."""

    # The columns that tell the rows of a cell apart.
    KEYS: ClassVar[tuple[str, ...]] = ()
    # Rows with these values are of a reference to read: nobody compares their times, and cells are not judged by them.
    REFERENCE: ClassVar[Mapping[str, Any]] = {}

    status: str = column("what came of it", allowed=STATUSES)
    reason: str | None = column("why there is no value, or an unstable one")

    @classmethod
    def derive(cls, reading: Reading) -> dict[str, Any]:
        """Return the derived columns of a row: nothing for what cannot be derived from what it holds."""
        return {}

    @classmethod
    def derive_rows(cls, reading: Reading) -> list[dict[str, Any]]:
        """Return the derived columns of each row that a recorded one stands for: of itself, where it was measured."""
        return [cls.derive(reading)]


OUTCOME = tuple(item.name for item in fields(Row))


def outcome_rows(cell: Any, status: str, reason: str) -> list[dict[str, Any]]:
    """Return the rows of a cell without values, as its record holds them."""
    return [{**key, "status": status, "reason": reason} for key in cell.row_keys()]


@dataclass(frozen=True)
class Column:
    """One column of a kind of row; or_subject: it may also hold the name of an implementation of the user's own."""

    name: str
    meaning: str
    type: type
    is_list: bool
    optional: bool
    allowed: tuple[Any, ...] = ()
    minimum: float | None = None
    positive: bool = False
    or_subject: bool = False
    derived: bool = False

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
            is_of_type = isinstance(value, self.type)
        else:
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            is_of_type = is_number and (self.type is float or value == int(value))
        if not is_of_type:
            return False
        if self.allowed and value not in self.allowed:
            return self.or_subject and NAME.fullmatch(value) is not None
        return not (self.positive and value <= 0) and (self.minimum is None or value >= self.minimum)


def columns(row_type: type[Row]) -> Mapping[str, Column]:
    """Return the columns of a kind of row by name: its keys, the outcome, the values as declared, lists at the end.

    Raises TypeError for a field that is no column, or of a type that tables cannot hold.
    """
    anything: Any = row_type  # mypy takes the class of a frozen dataclass for unhashable
    return _columns(anything)


@cache
def _columns(row_type: Any) -> Mapping[str, Column]:
    hints = get_type_hints(row_type)
    named = {item.name: _column(item.name, hints[item.name], item.metadata) for item in fields(row_type)}
    order = sorted(named.values(), key=lambda item: item.is_list)
    first = dict.fromkeys([*row_type.KEYS, *OUTCOME])
    return {name: named[name] for name in (*first, *(item.name for item in order if item.name not in first))}


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
        if not isinstance(kind, str) or kind not in self.types:
            raise ValueError(f"{self.kind_column} must be one of {', '.join(self.types)}, got {reprlib.repr(kind)}")
        return self.types[kind]

    def key_columns(self) -> tuple[str, ...]:
        """Return the columns that tell the rows of a cell apart, of all its kinds."""
        own = [self.kind_column] if any(self.kind_column in columns(each) for each in self.types.values()) else []
        return tuple(dict.fromkeys([*own, *(key for each in self.types.values() for key in each.KEYS)]))

    def column_names(self) -> tuple[str, ...]:
        """Return the columns of all kinds of rows: the keys, the outcome, the values."""
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
        """Raise ValueError, one line, where a recorded column of a cell's rows is not as it is declared."""
        complaint = next(self._complaints(cell, rows), None)
        if complaint is not None:
            raise ValueError(complaint)

    def complete(
        self, cell: Any, settings: Mapping[str, Any], machine: Mapping[str, Any], rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return rows with their derived columns; raises ValueError, one line, where one is not as declared."""
        completed = []
        for number, row in enumerate(rows, start=1):
            row_type = self.of(asdict(cell), row)
            reading = Reading(row, cell, settings, machine, rows)
            try:
                found_rows = row_type.derive_rows(reading)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise ValueError(f"row {number}: its derived columns cannot be made of it: {error!r}") from None
            known = {name: item for name, item in columns(row_type).items() if item.derived}
            for found in found_rows:
                whole = row | {name: value for name, value in found.items() if value is not None}
                complaint = next(_value_complaints(whole, known), None)
                if complaint is not None:
                    raise ValueError(f"row {number}: {complaint}")
                completed.append(whole)
        return completed

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
            recorded = {name: item for name, item in columns(row_type).items() if not item.derived}
            yield from (f"row {number}: {words}" for words in _row_complaints(row, recorded))
            key = (row_type, *(row.get(name) for name in row_type.KEYS))
            if first.setdefault(key, number) != number:
                named = " ".join(f"{name}={row.get(name)}" for name in row_type.KEYS)
                why = named or f"{row_type.__name__} has no KEYS to tell rows apart"
                yield f"row {number} is of the same as row {first[key]}: {why}"


def _row_complaints(row: Mapping[str, Any], recorded: Mapping[str, Column]) -> Iterator[str]:
    status = row.get("status")
    if status not in RECORDED_STATUSES:
        yield f"status must be one of {', '.join(RECORDED_STATUSES)}, got {reprlib.repr(status)}"
    for name in row:
        if name not in recorded:
            yield f"unknown column {reprlib.repr(name)}: must be one of {', '.join(recorded)}"
    yield from _value_complaints(row, recorded)


def _value_complaints(row: Mapping[str, Any], known: Mapping[str, Column]) -> Iterator[str]:
    """Yield what is off in these columns of a row, and which of them a row with values lacks."""
    for name, item in known.items():
        if row.get(name) is None:
            if not item.optional and row["status"] in WITH_VALUES:
                yield f"{name} is missing: must be {_one_of(item)}"
        elif not item.accepts(row[name]):
            yield f"{name} must be {_one_of(item)}, got {reprlib.repr(row[name])}"


def _one_of(item: Column) -> str:
    return f"one of {item.limits}" if item.allowed else item.limits
