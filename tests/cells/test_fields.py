import re
from dataclasses import dataclass

import pytest

from pipeline.cells import fields
from pipeline.cells.fields import axis
from pipeline.stages.timing.cell import Cell

from ..complaints import complaint


@dataclass(frozen=True)
class Point:
    dtype: str = axis("fp32", allowed=("fp32", "bf16"))
    seq_len: int = axis(128, minimum=1)
    dropout: float = axis(0.0, minimum=0)
    causal: bool = axis(True)
    subject: str = axis("plain")


def test_words_parse_back_to_the_same_cell_and_mean_the_same_as_yaml():
    point = Point(dtype="bf16", seq_len=4096, dropout=0.1, causal=False)
    assert fields.parse_words(Point, fields.words(point), "point") == point
    from_yaml = fields.build(Point, {"seq_len": 1, "causal": False, "dropout": 1}, "point")
    assert from_yaml == fields.parse_words(Point, ["seq_len=1", "causal=false", "dropout=1.0"], "point")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["size=xl"], "point: unknown key 'size': must be one of dtype, seq_len, dropout, causal, subject"),
        (["dtype=fp8"], "point: dtype must be one of fp32, bf16, got 'fp8'"),
        (["seq_len=-3"], "point: seq_len must be at least 1, got -3"),
        (["seq_len=2.5"], "point: seq_len must be a whole number, got '2.5'"),
        (["dropout=inf"], "point: dropout must be a finite number, got 'inf'"),
        (["causal=perhaps"], "point: causal must be true or false, got 'perhaps'"),
        (["seq_len"], "point: 'seq_len' is not of the form name=value"),
        (["seq_len=1", "seq_len=2"], "point: 'seq_len' is given twice"),
    ],
)
def test_an_error_in_words_says_what_is_allowed(words, message):
    assert complaint(fields.parse_words, Point, words, "point") == message


@pytest.mark.parametrize("name", ["seq_len", "dropout"])
@pytest.mark.parametrize(
    "value", [True, None, [1], "many", float("nan"), 10**400, -(10**400), "1" + "0" * 400, "9" * 5000], ids=range(9)
)
def test_yaml_values_of_wrong_type_or_range_are_refused_in_one_short_line(name, value):
    message = complaint(fields.build, Point, {name: value}, "point")
    assert message.startswith(f"point: {name} must be ")
    assert len(message) < 200


@pytest.mark.parametrize(
    ("name", "takes", "refuses"),
    [("dtype", ["fp32", "bf16"], ["fp16", "fp32.csv", "*"]), ("seq_len", ["1", "128"], ["0", "-1", "064", "1.5", ""])],
)
def test_value_patterns_match_exactly_a_fields_values_in_paths(name, takes, refuses):
    pattern = "|".join(fields.value_patterns(Point, name).values())
    assert [word for word in takes + refuses if re.fullmatch(pattern, word)] == takes


def test_free_text_must_be_harmless_in_paths_and_shells():
    for text in ("package.module:function", "2.7B", "a-b_c+d"):
        assert fields.build(Point, {"subject": text}, "cell") == Point(subject=text)
    for text in ("$(touch x)", "`x`", "a b", "a/b", "..", "a=b", "'a'", "a\n", "a;b", "*", "-a", "{size}", "", "é"):
        message = complaint(fields.build, Point, {"subject": text}, "cell")
        assert message.startswith("cell: subject must be letters, digits and ._:+-,")


def test_grids_expand_to_products_of_axes_without_duplicate_cells():
    cells = fields.expand(Cell, [{"size": ["small", "xl"], "precision": ["fp32", "bf16"]}], "grid")
    assert cells == [Cell(size=size, precision=each) for size in ("small", "xl") for each in ("fp32", "bf16")]
    grids = [{"size": ["small"]}, {"size": "small", "warmup_steps": [0, 5]}]
    assert fields.expand(Cell, grids, "grid") == [Cell(), Cell(warmup_steps=0)]
