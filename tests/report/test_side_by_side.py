import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.side_by_side import agree, cell_names, once_each, step_words, text_cells, without_empty


def test_cells_are_named_by_the_first_axis_and_by_what_else_varies():
    rows = pd.DataFrame({"precision": ["fp32", "bf16"], "size": "xl", "world_size": [2, 4]})
    axes = ["precision", "size", "world_size"]
    assert cell_names(rows, axes) == ["fp32, 2 ranks", "bf16, 4 ranks"]
    assert cell_names(rows.head(1), axes) == ["fp32"]
    batches = pd.DataFrame({"precision": "bf16", "batch_size_per_rank": [2, 4], "context_length": [512, 1024]})
    assert cell_names(batches, list(batches)) == ["bf16, batch 2, context 512", "bf16, batch 4, context 1024"]


def test_what_is_said_of_several_stands_once():
    said = [("fp32", Markdown("`a`.")), ("tf32", Markdown()), ("bf16", Markdown("`a`.")), ("fp16", Markdown("b."))]
    assert once_each(said) == "fp32 and bf16: `a`. fp16: b."
    assert once_each([]) == ""


def test_weights_that_differ_are_said_to_in_bold():
    assert agree("2 ways", "0", True, 1e-5) == "the weights of 2 ways agree after as many steps: they differ by 0."
    apart = agree("2 ways", "0.1", False, 1e-5)
    assert apart.endswith("**do not agree** after as many steps: they differ by 0.1, where rounding may make 1e-05.")


def test_an_unstable_step_is_named_so():
    assert step_words(pd.Series({"median_ms": 391.0, "status": "ok"})) == "391 ms"
    assert step_words(pd.Series({"median_ms": 391.0, "status": "unstable"})) == "391 ms (unstable)"


def test_what_is_missing_is_a_dash_and_a_column_of_dashes_is_left_out():
    cells = text_cells(pd.Series({"a": 1.0, "b": None}), "{:.0f}".format, ["c", "b", "a"])
    assert cells == ["–", "–", "1"]
    assert list(without_empty(pd.DataFrame({"x": cells, "y": "–"}))) == ["x"]
