import io

import pandas as pd
import pytest

from pipeline.errors import UserError
from pipeline.report.table_rows import divide, geometric_mean, in_order, ok, read_rows, spread


def times(status="ok", median_ms=2.0, reason=None):
    return pd.DataFrame(
        [{"size": "a", "median_ms": median_ms, "q1_ms": 1.0, "q3_ms": 4.0, "status": status, "reason": reason}]
    )


def test_unstable_rows_carry_figures_and_the_others_do_not():
    rows = pd.DataFrame({"status": ["ok", "unstable", "oom", "skipped"]})
    assert list(ok(rows)["status"]) == ["ok", "unstable"]


def test_names_come_in_their_order_unknown_ones_last():
    rows = pd.DataFrame({"name": ["z", "b", "a", "c"]})
    assert list(in_order(rows, ["name"], {"name": ("c", "b")})["name"]) == ["c", "b", "a", "z"]


def test_a_ratio_spans_what_the_quartiles_of_both_allow():
    (ratio,) = divide(times(), times(median_ms=1.0), ["size"]).to_dict("records")
    assert (ratio["median_ratio"], ratio["q1_ratio"], ratio["q3_ratio"]) == (2.0, 0.25, 4.0)


def test_spread_values_keep_their_places_and_the_order_in_which_they_come():
    rows = pd.DataFrame({"size": ["xl", "xl", "small"], "pass": ["step", "forward", "forward"], "ms": [3.0, 2.0, 1.0]})
    wide = spread(rows, ["size"], "pass", "ms")
    assert (list(wide.index), list(wide.columns)) == (["xl", "small"], ["step", "forward"])
    assert wide.loc["xl"].to_list() == [3.0, 2.0]
    assert wide.loc["small", "forward"] == 1.0
    assert pd.isna(wide.loc["small", "step"])


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("outcome", [("oom", "CUDA out of memory"), ("unstable", "noise")])
def test_a_ratio_has_the_outcome_of_whichever_row_is_not_ok(failing, outcome):
    status, reason = outcome
    pair = [times(), times()]
    pair[failing] = times(status, reason=reason)
    (ratio,) = divide(*pair, ["size"]).to_dict("records")
    assert (ratio["status"], ratio["reason"]) == outcome


@pytest.mark.parametrize("statuses", [("unstable", "oom"), ("oom", "unstable")])
def test_a_ratio_with_a_row_that_has_no_figure_has_none_either(statuses):
    (ratio,) = divide(*map(times, statuses), ["size"]).to_dict("records")
    assert ratio["status"] == "oom"


def test_only_an_empty_cell_is_missing():
    rows = read_rows(io.StringIO("device,implementation,note\nn/a,None,\n"))
    assert rows.loc[0, ["device", "implementation"]].tolist() == ["n/a", "None"]
    assert rows["note"].isna().all()


def test_the_geometric_mean_of_ratios_and_of_their_inverses_agree():
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([0.5, 0.125]) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot read .*table.csv: No such file or directory"),
        (b"", "table.csv is no table: No columns"),
        (b"a\n1,2\n1,2,3\n", "table.csv is no table: Error tokenizing"),
        (b"\xfd7zXZ\n", "table.csv is no table: 'utf-8'"),
        (b"a,b\n1,2\n3,", "table.csv is cut off: its last line has no end"),
    ],
)
def test_what_is_no_whole_table_is_named_in_one_line(tmp_path, content, complaint):
    path = tmp_path / "table.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=complaint) as raised:
        read_rows(path)
    assert "\n" not in str(raised.value)


def test_texts_become_one_line_each_and_figures_stay(tmp_path):
    path = tmp_path / "table.csv"
    pd.DataFrame(
        {"kernel": ["two\nlines", None, "\x1b[2J"], "ms": [1.5, 2.0, None], "causal": [True, False, True]}
    ).to_csv(path, index=False)
    rows = read_rows(path)
    assert rows["kernel"].tolist()[::2] == ["two lines", r"\x1b[2J"]
    assert rows["kernel"].isna().tolist() == [False, True, False]
    assert (rows["ms"].dtype, rows["causal"].dtype) == (float, bool)
