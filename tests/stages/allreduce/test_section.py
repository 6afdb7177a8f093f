import re

import pandas as pd
import pytest

from pipeline.formulas.collectives import all_reduce_bus_factor
from pipeline.report.page_parts import Figure, Table
from pipeline.stages.allreduce.report import baselines, facts, section

from ..sections import built, contents, gaps

MEASURED = ("h200", "cluster", "laptop", "smoke")
TIMES = ["median_ms", "q1_ms", "q3_ms"]


@pytest.fixture
def text(undrawn, tmp_path):
    return lambda rows: built(section.build, "allreduce")(rows, tmp_path)


def build(rows):
    return section.build(rows)


def scaled(rows, factor, mask):
    rows = rows.copy()
    rows.loc[mask, TIMES] *= factor
    rows.loc[mask, ["algbw_gb_per_s", "busbw_gb_per_s"]] /= factor
    return rows


@pytest.mark.parametrize("name", [*MEASURED, "nothing"])
def test_the_section_holds_no_gap_in_its_words(make_rows, text, name):
    assert gaps(text(make_rows(name))) == []


@pytest.mark.parametrize("name", MEASURED)
def test_bus_bandwidth_is_drawn_and_each_group_has_a_row(make_rows, name):
    rows = make_rows(name)
    parts = build(rows).parts
    assert [part.name for part in parts if isinstance(part, Figure)] == ["busbw"]
    assert [len(part.cells) for part in parts if isinstance(part, Table)] == [len(facts.groups(rows))]


def test_drawn_twice_the_section_has_the_same_bytes(make_rows, tmp_path):
    texts = [built(section.build, "allreduce")(make_rows("smoke"), tmp_path / name) for name in ("a", "b")]
    assert texts[0] == texts[1]
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_the_best_bandwidth_is_the_highest_of_any_ranks_and_size(make_rows):
    rows = make_rows("h200")
    fast = (rows["backend"] == "nccl") & (rows["world_size"] == 2) & (rows["size_bytes"] == 1e8)
    answer = build(scaled(rows, 0.5, fast)).answer
    best = rows.loc[fast & (rows["timing"] == "burst") & (rows["impl"] == "torch"), "busbw_gb_per_s"].item() / 0.5
    assert f"{best:.0f} GB/s with nccl (100 MB, 2 ranks)" in answer


def test_the_size_that_reaches_half_of_the_best_is_named(make_rows):
    rows = make_rows("h200")
    assert "nccl reaches half of it from 10 MB on" in build(rows).answer
    slow = scaled(rows, 3, (rows["backend"] == "nccl") & (rows["size_bytes"] == 1e7))
    assert "nccl reaches half of it from 100 MB on" in build(slow).answer


def test_the_fit_is_the_cost_that_made_the_rows(make_rows):
    for group in facts.groups(make_rows("h200")):
        latency_s, bus_bytes_per_s = {"gloo": (300e-6, 1.2e9), "nccl": (15e-6, 320e9)}[group.backend]
        assert group.cost.latency_s == pytest.approx(latency_s, rel=0.05)
        busbw = group.cost.bytes_per_s * all_reduce_bus_factor(group.world_size)
        assert busbw == pytest.approx(bus_bytes_per_s, rel=0.05)


def test_one_size_gives_no_fit(make_rows, text):
    (group,) = facts.groups(make_rows("smoke"))
    assert group.cost is None
    assert "half of it" not in text(make_rows("smoke"))


def test_ranks_for_which_there_are_too_few_gpus_have_no_row(make_rows, text):
    assert "nccl on 8 ranks |" not in text(make_rows("h200"))


def test_an_unstable_figure_says_so(make_rows, text):
    assert "(unstable)" in text(make_rows("laptop"))


def test_a_best_bandwidth_that_is_unstable_is_called_so(make_rows):
    rows = make_rows("h200")
    assert "unstable" not in build(rows).answer
    rows.loc[(rows["backend"] == "nccl") & (rows["status"] == "ok"), "status"] = "unstable"
    told = build(rows)
    assert re.search(r"GB/s with nccl \(.*, unstable\) and .* GB/s with gloo \([^)]*ranks\)", told.answer)


def test_a_laptop_hears_nothing_of_nccl_but_that_it_is_missing(make_rows):
    laptop = build(make_rows("laptop"))
    assert "nccl" not in laptop.answer
    assert [part for part in laptop.parts if isinstance(part, str) and "fewer cores than ranks: gloo on 4" in part]


def test_nothing_unstable_is_compared(make_rows):
    rows = make_rows("h200")
    slow = scaled(rows, 50, (rows["timing"] == "single") & (rows["size_bytes"] == 1e6))
    said = [str(part) for part in build(slow).parts]
    assert any("(1 MB, " in part for part in said)
    slow.loc[slow["size_bytes"] == 1e6, "status"] = "unstable"
    assert not any("the time of one in a burst (1 MB, " in str(part) for part in build(slow).parts)


def test_more_ranks_are_held_against_a_ring(make_rows):
    rows = make_rows("h200")
    doubled = rows.copy()
    times = {ranks: rows[(rows["backend"] == "gloo") & (rows["world_size"] == ranks)] for ranks in (2, 6)}
    doubled.loc[times[6].index, TIMES] = 2 * times[2][TIMES].to_numpy()
    assert "with 6 ranks 2.00× that (a ring over links of one speed: 1.67×)" in build(doubled).problems[0].answer


def test_several_nodes_are_held_against_the_best_within_one(make_rows, text):
    rows = make_rows("cluster")
    nccl = rows.query("backend == 'nccl' and timing == 'burst' and impl == 'torch'")
    within, across = nccl.groupby("nodes")["busbw_gb_per_s"].max()
    said = f"nccl reaches {across:.1f} GB/s (1000 MB, 4 ranks of 2 nodes), {across / within:.3f}× its best within one."
    assert f"Over 2 nodes {said}" in text(rows)
    assert "nccl on 4 ranks of 2 nodes |" in text(rows)
    assert "nodes" not in text(make_rows("h200"))


def test_the_problem_and_others_figures_are_of_one_node(make_rows):
    one_node, cluster = make_rows("h200"), make_rows("cluster")
    assert build(cluster).problems == build(one_node).problems
    assert len(baselines.pairs(cluster)) == len(baselines.pairs(one_node))


def test_nccl_that_could_not_be_called_leaves_the_rest(make_rows, text):
    rows = make_rows("h200")
    lost = rows[rows["impl"] != "nccl"]
    assert "NCCL called directly" in text(rows)
    assert "NCCL called directly" not in text(lost)


def test_nothing_measured_gives_the_reason_alone(make_rows):
    only = build(make_rows("nothing"))
    assert only.answer == "Nothing was measured: NCCL needs a GPU for each of 2 ranks, none present."
    assert (only.parts, only.actions, only.problems) == ((), (), ())


def test_others_stand_beside_ours_for_the_same_ranks_and_size_only(make_rows):
    pairs = baselines.pairs(make_rows("h200"))
    line = pairs[pairs["what"] == "all-reduce of 1 MB, nccl, 2 ranks, single call"].iloc[0]
    group = next(group for group in facts.groups(make_rows("h200")) if group.name == "nccl on 2 ranks")
    assert (line["theirs"], line["ours"]) == (364.509, group.singles.iloc[0]["mean_ms"])
    assert not pairs["what"].str.contains("8 ranks").any()
    odd = make_rows("h200").assign(size_bytes=lambda rows: rows["size_bytes"] * 3)
    assert isinstance(baselines.pairs(odd), pd.DataFrame)
    assert baselines.pairs(odd).empty


def test_the_link_is_drawn_beside_nccl_alone_where_it_was_measured(make_rows):
    link = pd.DataFrame({"kind": ["to_peer", "to_host"], "gb_per_s": [380.0, 50.0]})
    for beside, lines in ((None, 0), ({"ceilings": pd.DataFrame({"reason": []})}, 0), ({"ceilings": link}, 1)):
        (figure,) = [part for part in section.build(make_rows("h200"), beside).parts if isinstance(part, Figure)]
        labels = [axes.get_legend_handles_labels()[1] for axes in figure.drawing.axes]
        assert sum(found.count("copy from GPU to GPU") for found in labels) == lines
