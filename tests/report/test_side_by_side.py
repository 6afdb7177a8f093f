import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.side_by_side import cell_names, once_each


def test_cells_are_named_by_the_first_axis_and_by_what_else_varies():
    rows = pd.DataFrame({"precision": ["fp32", "bf16"], "size": "xl", "world_size": [2, 4]})
    axes = ["precision", "size", "world_size"]
    assert cell_names(rows, axes) == ["fp32, 2 ranks", "bf16, 4 ranks"]
    assert cell_names(rows.head(1), axes) == ["fp32"]


def test_what_is_said_of_several_stands_once():
    said = [("fp32", Markdown("`a`.")), ("tf32", Markdown()), ("bf16", Markdown("`a`.")), ("fp16", Markdown("b."))]
    assert once_each(said) == "fp32 and bf16: `a`. fp16: b."
    assert once_each([]) == ""
