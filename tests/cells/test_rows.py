import re
from dataclasses import dataclass
from typing import ClassVar

import pytest

from pipeline.cells.rows import Row, RowTypes, column, columns, derived


@dataclass(frozen=True, kw_only=True)
class Time(Row):
    KEYS = ("phase",)
    phase: str = column("which", allowed=("forward", "backward"))
    time_ms: float = column("how long", positive=True)
    calls: int | None = column("how often", minimum=0)
    samples_ms: list[float] | None = column("all of them")
    on_gpu: bool | None = column("where")


@dataclass(frozen=True, kw_only=True)
class Peak(Row):
    peak_bytes: int = column("how much", minimum=0)


TIME = {"phase": "forward", "status": "ok", "time_ms": 2}


def test_a_row_as_declared_is_valid():
    more = {"calls": 3, "samples_ms": [1, 2.5], "on_gpu": False, "reason": "a word"}
    without_values = {"phase": "forward", "status": "oom"}, {"status": "skipped"}
    for row in (TIME, TIME | more, TIME | {"calls": None}, *without_values):
        RowTypes.one(Time).check({}, [row])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        *(
            ({"time_ms": value}, f"time_ms must be a finite number above 0, got {value!r}")
            for value in (0, -1.5, float("nan"), float("inf"), "2", True, [2.0])
        ),
        ({"time_ms": None}, "time_ms is missing: must be a finite number above 0"),
        *(({"calls": value}, f"calls must be a whole number, at least 0, got {value}") for value in (1.5, -1)),
        ({"samples_ms": 1.0}, "samples_ms must be a list, each a finite number, got 1.0"),
        ({"samples_ms": [1.0, None]}, "samples_ms must be a list, each a finite number, got [1.0, None]"),
        ({"on_gpu": 1}, "on_gpu must be true or false, got 1"),
        ({"phase": "sideways"}, "phase must be one of forward, backward, got"),
        ({"status": "fine"}, "status must be one of ok, skipped, oom, wrong"),
        ({"time_s": 2}, "unknown column 'time_s': must be one of phase, status, "),
    ],
)
def test_an_invalid_value_is_reported_with_row_column_and_what_is_allowed(changes, complaint):
    with pytest.raises(ValueError, match=f"^row 2: {re.escape(complaint)}"):
        RowTypes.one(Time).check({}, [{**TIME, "phase": "backward"}, {**TIME, **changes}])


def test_a_column_for_subjects_accepts_only_valid_names():
    @dataclass(frozen=True, kw_only=True)
    class Race(Row):
        KEYS = ("impl",)
        impl: str = column("whose", allowed=("ours", "torch"), or_subject=True)

    RowTypes.one(Race).check({}, [{"impl": impl, "status": "ok"} for impl in ("ours", "torch", "mine", "my_flash_2")])
    assert RowTypes.one(Race).impl_names() == {"ours", "torch"}
    for impl in ("Mine", "", "a" * 33, "<b>", "../x", "mine\n", 3):
        with pytest.raises(ValueError, match="must be one of ours, torch, or a name of your own"):
            RowTypes.one(Race).check({}, [{"impl": impl, "status": "ok"}])


def test_rows_with_the_same_keys_are_refused():
    with pytest.raises(ValueError, match=r"^row 3 .* row 1: phase=forward$"):
        RowTypes.one(Time).check({}, [TIME, {**TIME, "phase": "backward"}, TIME])
    with pytest.raises(ValueError, match=r"^row 2 .* row 1: Peak has no KEYS"):
        RowTypes.one(Peak).check({}, [{"status": "ok", "peak_bytes": 1}] * 2)


@pytest.mark.parametrize("kind_is_axis", [True, False])
def test_an_axis_or_a_column_selects_a_rows_type(kind_is_axis):
    types = RowTypes({"time": Time, "peak": Peak}, kind_column="kind")
    if kind_is_axis:
        types.check({"kind": "peak"}, [{"status": "ok", "peak_bytes": 1}])
        with pytest.raises(ValueError, match="unknown column 'phase'"):
            types.check({"kind": "peak"}, [TIME])
    with pytest.raises(ValueError, match="row 1: kind must be one of time, peak, got 'size'"):
        types.check({"kind": "size"} if kind_is_axis else {}, [{"kind": "size", "status": "ok"}])


def test_columns_have_keys_first_and_lists_last_and_a_kind_column_is_a_key():
    @dataclass(frozen=True, kw_only=True)
    class Named(Time):
        kind: str = column("what", allowed=("a", "b"))

    assert list(columns(Time)) == ["phase", "status", "reason", "time_ms", "calls", "on_gpu", "samples_ms"]
    both = RowTypes({"a": Time, "b": Peak}, kind_column="kind")
    assert (both.column_names()[:3], both.column_names()[-1]) == (("phase", "status", "reason"), "peak_bytes")
    assert both.key_columns() == ("phase",)
    assert RowTypes({"a": Named, "b": Peak}, kind_column="kind").key_columns() == ("kind", "phase")


def test_a_row_is_a_reference_only_with_all_reference_values():
    @dataclass(frozen=True, kw_only=True)
    class Timed(Time):
        REFERENCE: ClassVar = {"phase": "forward", "on_gpu": True}

    types = RowTypes.one(Timed)
    assert types.is_reference({**TIME, "on_gpu": True})
    assert not any(map(types.is_reference, (TIME, {**TIME, "on_gpu": False})))
    assert not RowTypes.one(Time).is_reference({**TIME, "on_gpu": True})


@dataclass(frozen=True, kw_only=True)
class Answer(Row):
    KEYS = ("number",)
    number: int = derived("which", minimum=1)

    @classmethod
    def derive_rows(cls, reading):
        first = reading.settings.get("first", 1)
        return [{"number": number} for number in range(first, reading.settings["answers"] + 1)]


@pytest.mark.parametrize("answers", [1, 3])
def test_a_recorded_row_may_expand_to_several_derived_rows_each_checked(answers):
    rows = RowTypes.one(Answer).complete(Time(), {"answers": answers}, {}, [{"status": "ok"}])
    assert rows == [{"status": "ok", "number": number} for number in range(1, answers + 1)]
    with pytest.raises(ValueError, match="row 1: number must be a whole number, at least 1, got 0"):
        RowTypes.one(Answer).complete(Time(), {"answers": answers, "first": 0}, {}, [{"status": "ok"}])
