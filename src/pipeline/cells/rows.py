"""Typed rows: a stage declares a frozen dataclass for each kind of row that its cells produce.

A record holds only the measured columns. The others are derived from these, the cell and its settings whenever a record
is read, so that a better rule or a fixed formula needs no new measurement.
"""

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from pipeline.subjects.naming import NAME

# Outcomes of a row, from best to worst.
STATUSES = ("ok", "unstable", "skipped", "oom", "wrong", "failed")
WITH_VALUES = ("ok", "unstable")
# `unstable` is derived from the samples instead.
RECORDED_STATUSES = tuple(status for status in STATUSES if status != "unstable")


def column(meaning: str, **limits: Any) -> Any:
    """Declare a column. meaning: what its name, which includes the unit, does not say; limits: see Column.

    Only a column of type `X | None` may be missing from a row that has values.
    """
    return field(default=None, metadata={"meaning": meaning, **limits})


def derived(meaning: str, **limits: Any) -> Any:
    """Declare a column that is not recorded: the row type's `derive` returns it whenever a row is read."""
    return column(meaning, derived=True, **limits)


@dataclass(frozen=True)
class Reading:
    """What columns are derived from: one row as recorded, and the rest of its record, including all rows."""

    row: Mapping[str, Any]
    cell: Any
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    def sibling_row(self, keys: Sequence[str], **values: Any) -> Mapping[str, Any] | None:
        """Return the cell's row that has these values and otherwise the same `keys`; None if there is none."""
        wanted = {name: self.row.get(name) for name in keys} | values
        return next((row for row in self.rows if all(row.get(name) == wanted[name] for name in wanted)), None)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row per measurement: what was measured, the outcome, and its values."""

    # The columns that tell the rows of a cell apart.
    KEYS: ClassVar[tuple[str, ...]] = ()
    # Columns and settings that say how much work was measured: runs are compared only where these are the same.
    WORK: ClassVar[tuple[str, ...]] = ("batch_size", "vocab_size")
    # Rows with these values are only a reference: their times are not compared, and cells are not judged by them.
    REFERENCE: ClassVar[Mapping[str, Any]] = {}

    status: str = column("outcome", allowed=STATUSES)
    reason: str | None = column("why there is no value, or why it is unstable")

    @classmethod
    def derive(cls, reading: Reading) -> dict[str, Any]:
        """Return the derived columns of a row, omitting those that cannot be computed from it."""
        return {}

    @classmethod
    def derive_rows(cls, reading: Reading) -> list[dict[str, Any]]:
        """Return the derived columns of each row that a recorded one stands for; by default only itself."""
        return [cls.derive(reading)]


OUTCOME = tuple(item.name for item in fields(Row))


def outcome_rows(cell: Any, status: str, reason: str) -> list[dict[str, Any]]:
    """Return a cell's rows for an outcome without values, as its record holds them."""
    return [{**key, "status": status, "reason": reason} for key in cell.row_keys()]


@dataclass(frozen=True)
class Column:
    """One column of a row type; or_subject: it may also hold the name of one of the user's implementations."""

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
        """Tell whether this column may hold a value, as parsed from JSON."""
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
    """Return a row type's columns by name: its keys, the outcome, the values as declared, lists last.

    Raises TypeError for a field that is not a column or has a type that tables cannot hold.
    """
    hashable: Any = row_type  # mypy considers the class of a frozen dataclass unhashable
    return _columns(hashable)


@cache
def _columns(row_type: Any) -> Mapping[str, Column]:
    hints = get_type_hints(row_type)
    by_name = {item.name: _column(item.name, hints[item.name], item.metadata) for item in fields(row_type)}
    order = sorted(by_name.values(), key=lambda item: item.is_list)
    leading = dict.fromkeys([*row_type.KEYS, *OUTCOME])
    return {name: by_name[name] for name in (*leading, *(item.name for item in order if item.name not in leading))}


def _column(name: str, hint: Any, limits: Mapping[str, Any]) -> Column:
    options = [each for each in get_args(hint) if each is not NoneType] if isinstance(hint, UnionType) else [hint]
    is_list = get_origin(options[0]) is list
    kind = get_args(options[0])[0] if is_list else options[0]
    if len(options) != 1 or kind not in (str, int, float, bool) or "meaning" not in limits:
        raise TypeError(f"{name} is not a column: declare `name: type = column(meaning)` with str, int, float or bool")
    return Column(name, type=kind, is_list=is_list, optional=isinstance(hint, UnionType), **limits)


@dataclass(frozen=True)
class RowTypes:
    """A stage's row types; if there are several, by their values in `kind_column`, a column or an axis."""

    types: Mapping[str, type[Row]]
    kind_column: str = ""

    @classmethod
    def one(cls, row_type: type[Row]) -> "RowTypes":
        """Return the row types of a stage that has only one."""
        return cls({"": row_type})

    def type_of(self, cell: Mapping[str, Any], row: Mapping[str, Any]) -> type[Row]:
        """Return the type of a row; raises ValueError if its kind is unknown."""
        kind = {**cell, **row}.get(self.kind_column, "")
        if not isinstance(kind, str) or kind not in self.types:
            raise ValueError(f"{self.kind_column} must be one of {', '.join(self.types)}, got {reprlib.repr(kind)}")
        return self.types[kind]

    def key_columns(self) -> tuple[str, ...]:
        """Return the columns that tell a cell's rows apart, over all row types."""
        own = [self.kind_column] if any(self.kind_column in columns(each) for each in self.types.values()) else []
        return tuple(dict.fromkeys([*own, *(key for each in self.types.values() for key in each.KEYS)]))

    def work_columns(self) -> tuple[str, ...]:
        """Return the columns and settings that say how much work was measured, over all row types."""
        return tuple(dict.fromkeys(name for each in self.types.values() for name in each.WORK))

    def column_names(self) -> tuple[str, ...]:
        """Return the columns of all row types: the keys, the outcome, the values."""
        names = [name for each in self.types.values() for name in columns(each)]
        return tuple(dict.fromkeys([*self.key_columns(), *OUTCOME, *names]))

    def impl_names(self) -> frozenset[str]:
        """Return the names of implementations that rows may hold, except the user's own."""
        items = [item for each in self.types.values() for item in columns(each).values()]
        return frozenset(name for item in items if item.or_subject for name in item.allowed)

    def is_reference(self, row: Mapping[str, Any]) -> bool:
        """Tell whether a row is only a reference, not used to judge its cell."""
        references = [each.REFERENCE for each in self.types.values() if each.REFERENCE]
        return any(all(row.get(name) == value for name, value in reference.items()) for reference in references)

    def check(self, cell: Mapping[str, Any], rows: Sequence[Any]) -> None:
        """Raise ValueError, one line, if a recorded column of a cell's rows violates its declaration."""
        first: dict[tuple, int] = {}
        for number, row in enumerate(rows, start=1):
            if not isinstance(row, dict):
                raise ValueError(f"row {number} must be an object, got {reprlib.repr(row)}")
            try:
                row_type = self.type_of(cell, row)
                _check_recorded(row, {name: item for name, item in columns(row_type).items() if not item.derived})
            except ValueError as error:
                raise ValueError(f"row {number}: {error}") from None
            key = (row_type, *(row.get(name) for name in row_type.KEYS))
            if first.setdefault(key, number) != number:
                keys_text = " ".join(f"{name}={row.get(name)}" for name in row_type.KEYS)
                why = keys_text or f"{row_type.__name__} has no KEYS to tell rows apart"
                raise ValueError(f"row {number} has the same keys as row {first[key]}: {why}")

    def complete(
        self, cell: Any, settings: Mapping[str, Any], machine: Mapping[str, Any], rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Add the derived columns to rows; raises ValueError, one line, if one fails or violates its declaration."""
        completed = []
        for number, row in enumerate(rows, start=1):
            row_type = self.type_of(asdict(cell), row)
            reading = Reading(row, cell, settings, machine, rows)
            try:
                derived_rows = row_type.derive_rows(reading)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise ValueError(f"row {number}: its derived columns cannot be computed: {error!r}") from None
            derived_columns = {name: item for name, item in columns(row_type).items() if item.derived}
            for derived_values in derived_rows:
                completed_row = row | {name: value for name, value in derived_values.items() if value is not None}
                try:
                    _check_values(completed_row, derived_columns)
                except ValueError as error:
                    raise ValueError(f"row {number}: {error}") from None
                completed.append(completed_row)
        return completed


def _check_recorded(row: Mapping[str, Any], recorded: Mapping[str, Column]) -> None:
    """Raise ValueError, one line, if a row is not as it may be recorded with these columns."""
    status = row.get("status")
    if status not in RECORDED_STATUSES:
        raise ValueError(f"status must be one of {', '.join(RECORDED_STATUSES)}, got {reprlib.repr(status)}")
    for name in row:
        if name not in recorded:
            raise ValueError(f"unknown column {reprlib.repr(name)}: must be one of {', '.join(recorded)}")
    _check_values(row, recorded)


def _check_values(row: Mapping[str, Any], known: Mapping[str, Column]) -> None:
    """Raise ValueError, one line, if one of these columns has an invalid value, or a row with values lacks one."""
    for name, item in known.items():
        if row.get(name) is None:
            if not item.optional and row["status"] in WITH_VALUES:
                raise ValueError(f"{name} is missing: must be {_one_of(item)}")
        elif not item.accepts(row[name]):
            raise ValueError(f"{name} must be {_one_of(item)}, got {reprlib.repr(row[name])}")


def _one_of(item: Column) -> str:
    return f"one of {item.limits}" if item.allowed else item.limits
