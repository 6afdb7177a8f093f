import pytest

from pipeline.compare import page
from pipeline.compare.differences import differences
from pipeline.compare.machines import models, models_table
from pipeline.compare.pair import compare
from pipeline.compare.runs import prices
from pipeline.errors import UserError

from ..report.runs import GPU

FAST = {"eager": [100.0], "sdpa+compile": [50.0], "eager_again": [100.0]}
SLOW = {levers: [2 * each for each in medians] for levers, medians in FAST.items()}
H100 = {**GPU, "kind": "NVIDIA H100 80GB HBM3", "gpus": [{"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 * 10**9}]}


def both(make_run):
    return [make_run("h200", FAST), make_run("h100", SLOW, machine=H100)]


def test_each_model_stands_once_a_way_with_the_figures_of_every_run(make_run):
    runs = [*both(make_run), make_run("third", FAST, size="xl")]
    table = models_table(models(runs, {}), [run.name for run in runs])
    lines = table.rows.set_index(["size", "way"])
    assert list(lines.index) == [("medium", "as written"), ("medium", "tuned"), ("xl", "as written"), ("xl", "tuned")]
    fast, slow = lines.loc[("medium", "tuned"), ["tokens_per_s_h200", "tokens_per_s_h100"]]
    assert fast == pytest.approx(2 * slow)
    assert lines["tokens_per_s_third"].notna().tolist() == [False, False, True, True]


def test_a_price_makes_a_cost_per_token_and_picks_the_cheapest(make_run):
    found = models(both(make_run), {"h200": 3.6, "h100": 1.2})
    tuned = found[found["way"] == "tuned"].set_index("run")
    assert tuned.loc["h200", "usd"] == pytest.approx(3.6 / 3600 / tuned.loc["h200", "tokens_per_s"] * 1e6)
    table = models_table(found, ["h200", "h100"])
    assert set(table.rows["cheapest"]) == {"h100"}


def test_without_a_price_nothing_is_said_of_cost(make_run):
    table = models_table(models(both(make_run), {}), ["h200", "h100"])
    assert not [head for head, _, _ in table.columns if "$" in head or head == "cheapest"]


@pytest.mark.parametrize("word", ["h300=1", "h200=", "h200=0", "h200=nan", "1"])
def test_a_price_of_no_run_or_that_is_none_is_one_line(make_run, word):
    with pytest.raises(UserError, match="--price"):
        prices([word], both(make_run))


def test_what_runs_were_made_with_is_told_where_it_differs(make_run):
    rows = differences(both(make_run)).rows.set_index("what")
    assert list(rows.loc["machine", ["h200", "h100"]]) == ["NVIDIA H200", "NVIDIA H100 80GB HBM3"]
    assert "torch" not in rows.index
    assert differences([make_run("a", FAST), make_run("b", FAST)]).rows.empty


def test_text_and_page_hold_models_and_times(make_run):
    runs = both(make_run)
    pair = compare(*runs, 0.05)
    text = page.machines(runs, {}) + page.details(pair, every=False)
    assert "medium" in text
    assert "slower" in text
    assert 'data-chart="compare/ratios"' in page.html(runs, {}, pair)
    assert "compare/ratios" not in page.html([*runs, make_run("third", FAST)], {}, None)
