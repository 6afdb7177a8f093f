from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from pipeline.compare import page
from pipeline.compare.machines import differences, models, prices
from pipeline.compare.pair import compare
from pipeline.compare.runs import Run
from pipeline.errors import UserError
from pipeline.registry import stages

from ..report.runs import GPU

FAST = {"eager": [100.0], "sdpa+compile": [50.0], "eager_again": [100.0]}
SLOW = {levers: [2 * each for each in medians] for levers, medians in FAST.items()}
H100 = {**GPU, "kind": "NVIDIA H100 80GB HBM3", "gpus": [{"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 * 10**9}]}


@pytest.fixture
def both(make_run):
    return [make_run("h200", FAST), make_run("h100", SLOW, machine=H100)]


def cells(table):
    """Return the cells of a table as written, by the first two columns of their line and their header."""
    lines = [line.strip("| ").split(" | ") for line in table.markdown().splitlines() if line.startswith("|")]
    return {(*line[:2], head): cell for line in lines[2:] for head, cell in zip(lines[0][2:], line[2:], strict=True)}


def test_each_model_and_way_has_one_line_with_the_values_of_every_run(both, make_run):
    found = cells(models([*both, make_run("third", FAST, size="xl")], {}))
    ways = [(size, way) for size in ("medium", "xl") for way in ("as written", "tuned")]
    assert [key[:2] for key in found][:: len(found) // 4] == ways
    fast, slow = (float(found["medium", "tuned", run].split(" / ")[0].replace(",", "")) for run in ("h200", "h100"))
    assert fast == pytest.approx(2 * slow, rel=1e-4)
    assert [found[size, "tuned", "third"] == "–" for size in ("medium", "xl")] == [True, False]


def test_runs_that_trained_no_model_have_no_table():
    empty = [Run(name, Path(name), [], stages()) for name in ("a", "b")]
    assert models(empty, {"a": 1.0, "b": 2.0}).is_empty


def test_steps_in_different_precisions_have_separate_lines(both, make_run):
    fp32 = make_run("fp32", SLOW)
    for record in fp32.records:
        record["cell"]["precision"] = "fp32"
    table = models([both[0], fp32], {})
    assert {*table.rows[["run", "precision"]].itertuples(index=False, name=None)} == {
        ("h200", "bf16"),
        ("fp32", "fp32"),
    }
    assert len(table.markdown().split("\n| medium")) == 1 + 2 * 2


def test_prices_give_a_cost_per_token_and_the_cheapest_of_the_priced_runs(both, make_run):
    table = models([*both, make_run("third", FAST, size="xl")], {"h200": 3.6, "h100": 1.2, "third": 1.0})
    step = table.rows.set_index(["way", "model", "run"]).loc[("tuned", "medium", "h200")]
    assert step["usd"] == pytest.approx(3.6 / 3600 / step["tokens_per_s"] * 1e6)
    found = cells(table)
    assert (found["medium", "tuned", "cheapest"], found["xl", "tuned", "cheapest"]) == ("h100", "–")
    assert len(found["medium", "tuned", "h100"].split(" / ")) == 4
    noisy = make_run("noisy", SLOW)
    for record in noisy.records:
        record["rows"] = [row | {"status": "unstable"} for row in record["rows"]]
    unsure = cells(models([both[0], noisy], {"h200": 3.6, "noisy": 1.2}))
    assert unsure["medium", "tuned", "cheapest"] == "undecided"
    full = make_run("full", SLOW)
    for record in full.records:
        record["rows"] = [
            {"levers": row["levers"], "status": "oom"} if row["levers"] == "eager" else row for row in record["rows"]
        ]
    found = cells(models([both[0], full], {"h200": 3.6, "full": 1.2}))
    assert [found["medium", "as written", name] for name in ("cheapest", "full")] == ["h200", "OOM"]
    without = models(both, {})
    assert not [head for head, _, _ in without.columns if "USD" in head or head == "cheapest"]


@pytest.mark.parametrize("word", ["h300=1", "h200=", "h200=0", "h200=nan", "1"])
def test_an_invalid_price_or_an_unknown_run_gives_a_one_line_error(both, word):
    with pytest.raises(UserError, match="--price"):
        prices([word], both)


def test_differences_list_only_facts_that_differ(both, make_run):
    found = cells(differences(both))
    assert [found["–", "machine", run] for run in ("h200", "h100")] == ["NVIDIA H200", "NVIDIA H100 80GB HBM3"]
    assert ("–", "torch", "h200") not in found
    assert differences([make_run("a", FAST), make_run("b", FAST)]).is_empty


def test_versions_of_code_are_numbered_and_those_that_runs_share_have_one_number(make_run):
    runs = [make_run(name, FAST) for name in ("a", "b", "c")]
    for run, digest in zip(runs, ("f00d", "beef", "f00d"), strict=True):
        for record in run.records:
            record["code"] = {**record["code"], "digest": digest}
    found = cells(differences(runs))
    assert [found["levers", "code", run] for run in "abc"] == ["v1", "v2", "v1"]


def test_text_and_page_have_models_and_times_in_well_formed_tables(both, make_run):
    pair = compare(*both, 0.05)
    parts = page.comparison(both, {}, pair, None)
    text = page.markdown(parts)
    assert text.count("\n| :-- |") >= 4
    assert text.startswith("A: **h200**: ")
    assert "\nB: **h100**: " in text
    assert "\n\nB (h100) is slower:\n" in text
    assert "&#124;" not in text
    named = {getattr(part, "name", ""): part for part in parts}
    counted = named["verdicts"].rows.set_index(["quantity", "verdict"])["times"].to_dict()
    assert counted == pair.times.groupby(["quantity", "verdict"]).size().to_dict()
    assert counted["ms", "slower"] == 3
    assert set(named["slower"].rows["verdict"]) == {"slower"}
    assert set(named["faster"].rows["verdict"]) <= {"faster"}
    assert 'data-chart="compare/ratios"' in page.html(both, parts, page.filterable_tables(pair, None))
    assert page.markdown([replace(named["slower"], rows=pd.concat([pair.times] * 9))]).endswith(
        " (`--all` lists them)."
    )
    three = [*both, make_run("third", FAST)]
    assert "compare/ratios" not in page.html(three, page.comparison(three, {}, None, None), {})
