import math

import pandas as pd
import pytest

from pipeline.stages.profile.cell import PASSES
from pipeline.stages.profile.report import build

from ..frames import shown
from ..published import sound


def part(section, name):
    return shown(section)[name]


def captured(size="small", context_length=128, profiler="auto", **columns):
    rows = sound("profile")
    for name, value in {"size": size, "context_length": context_length, "profiler": profiler, **columns}.items():
        rows = rows[rows[name] == value]
    return rows.reset_index(drop=True)


@pytest.fixture
def pair():
    return captured()


def test_the_kinds_of_a_bar_and_the_parts_of_attention_add_up_to_its_time(pair):
    assert list(part(build(pair, {}), "kinds").rows.groupby("label")["share_pct"].sum()) == pytest.approx([100, 100])
    is_rare = (pair["category"] == "normalisation") & (pair["kind"] == "category")
    kinds = part(build(pair.assign(share_pct=pair["share_pct"].mask(is_rare, 0.4)), {}), "kinds").rows
    assert set(kinds.loc[kinds["category"] == "normalisation", "kind_of_work"]) == {"other"}
    rows = part(build(pair, {}), "attention").rows
    assert len(rows) == 2
    for _, row in rows.iterrows():
        of_pass = pair[(pair["kind"] == "attention") & (pair["precision"] == row["precision"])]
        of_pass = of_pass[of_pass["range"] == PASSES[0]]
        assert row[["matmul_ms", "mask_ms", "time_ms", "beside_ms"]].sum() == pytest.approx(of_pass["time_ms"].sum())
        softmax, products = row["time_ms"] / row["flops_softmax"], row["matmul_ms"] / row["flops"]
        assert row["per_flop_times"] == pytest.approx(softmax / products)


def test_forward_only_captures_are_labelled_and_two_profilers_are_not_mixed(pair):
    found = build(pair[pair["range"] == PASSES[0]], {})
    assert set(part(found, "kinds").rows["range"]) == {PASSES[0]}
    assert set(part(found, "kernels").rows["part"]) == {"forward only"}
    both = [captured(context_length=256, profiler=profiler, precision="bf16") for profiler in ("auto", "torch")]
    found = build(pd.concat(both, ignore_index=True), {})
    assert len(part(found, "kinds").rows["label"].unique()) == 1
    assert len(part(found, "shares").rows) == len(PASSES)
    assert set(part(found, "forward_times").rows["profiler"]) == {"auto"}


def test_the_largest_model_in_the_lowest_precision_leads_at_the_context_most_have(pair):
    medium = captured("medium", 1024, precision="bf16").assign(context_length=128)
    found = build(pd.concat([pair, medium, captured(context_length=512, precision="bf16")], ignore_index=True), {})
    assert len(part(found, "kinds").rows["label"].unique()) == 3
    assert set(part(found, "kinds").rows["range"]) == {PASSES[-1]}
    assert "medium in bf16" in found.answer


def test_captures_are_compared_with_the_host_clock_but_not_with_an_unstable_time(pair):
    is_host = (pair["clock"] == "host") & (pair["precision"] == "bf16")
    rows = pair.assign(status=pair["status"].mask(is_host, "unstable"))
    table = part(build(rows, {}), "forward_times")
    times = rows[(rows["kind"] == "time") & (rows["range"] == PASSES[0])].pivot_table("median_ms", "precision", "clock")
    off_pct = 100 * (times["span"] / times["host"] - 1)
    expected = off_pct.to_dict() | {"bf16": math.nan}
    assert table.rows.set_index("precision")["off_pct"].to_dict() == pytest.approx(expected, nan_ok=True)
    assert table.markdown().count("~") == 1
