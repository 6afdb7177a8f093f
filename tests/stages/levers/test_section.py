import itertools
import re

import pandas as pd
import pytest

from pipeline.report.lever_words import WORDS
from pipeline.report.page_parts import MOST_TABLE_ROWS
from pipeline.report.section import ratio
from pipeline.stages.levers.cell import LEVERS
from pipeline.stages.levers.report import section, selection

from ..sections import (
    built,
    drawn_figures,
    gaps,
    linked_figures,
    render,
)

ALL = ("NVIDIA H200", "AMD EPYC")
BUILD = built(section.build, "levers")


@pytest.fixture(scope="module")
def rendered(make_rows, tmp_path_factory):
    return render(BUILD, {name: make_rows(name) for name in ALL}, tmp_path_factory)


@pytest.mark.parametrize("name", ALL)
def test_the_section_is_whole_and_shows_its_figure(rendered, name):
    _, text, folder = rendered[name]
    assert gaps(text) == []
    assert linked_figures(text, "levers") == drawn_figures(folder) == {"gains"}


def test_the_answer_names_what_buys_most_alone_and_the_fastest_combination_of_the_largest_model(rendered):
    text = rendered["NVIDIA H200"].text
    assert re.search(r"\*\*xl at context 1024: alone, SDPA gains most, 1\.3\d×\.", text)
    assert re.search(
        r"Together, fused AdamW, SDPA, torch.compile, a CUDA graph and bf16 weights gain most: 3\d\d ms → 1\d\d ms",
        text,
    )


def test_without_levers_alone_nothing_is_said_of_them(make_rows):
    rows = make_rows("NVIDIA H200")
    answer = section.build(rows[(rows["levers"] == "eager") | rows["levers"].str.contains("+", regex=False)]).answer
    assert answer.startswith("xl at context 1024: together, fused AdamW, ")
    assert " (none of them measured alone) gain: 3" in answer


def test_the_method_says_what_is_wrong_and_speaks_of_bf16_weights_only_where_they_are(make_rows):
    rows = make_rows("NVIDIA H200")
    method = section.build(rows).method
    assert "if it is off by more than 10% of what eager's has fallen by till then. Each is measured" in method
    assert method.endswith("the loss says nothing of their quality.")
    assert "Weights in bf16" not in section.build(rows[~rows["levers"].str.contains("bf16_weights")]).method


def test_the_figure_s_title_is_of_the_advised_combination_for_every_model_that_has_it(make_rows):
    rows = make_rows("NVIDIA H200")
    title = section.build(rows).parts[0].title
    advised = "Gain of fused AdamW, SDPA, torch.compile and a CUDA graph over the eager step at context 1024: "
    medium, xl = (gain_of(rows, size, "fused+sdpa+compile+graph") for size in ("medium", "xl"))
    assert title == f"{advised}medium {ratio(medium)} and xl {ratio(xl)}"
    only_xl = rows[(rows["size"] == "xl") | (rows["levers"] != "fused+sdpa+compile+graph")]
    assert section.build(only_xl).parts[0].title == f"{advised}xl {ratio(xl)}"
    slow = rows.assign(limited_by=rows["size"].map({"medium": "host", "xl": "gpu"}))
    assert section.build(slow).parts[0].title.endswith("×; the host limits the eager step of medium")


def gain_of(rows, size, levers, base="eager"):
    median_ms = rows[rows["size"] == size].set_index("levers")["median_ms"]
    return median_ms[base] / median_ms[levers]


def test_the_figure_s_title_names_each_context_where_they_differ(make_rows):
    rows = make_rows("NVIDIA H200")
    rows.loc[rows["size"] == "medium", "context_length"] = 512
    title = section.build(rows).parts[0].title
    assert re.search(r"over the eager step: medium at context 512 .*× and xl at context 1024 .*×$", title)


def test_where_no_combination_is_faster_the_figure_says_so(make_rows):
    rows = make_rows("AMD EPYC")
    rows.loc[rows["levers"] == "eager", "median_ms"] /= 1000
    assert section.build(rows).parts[0].title == "No combination is faster than the eager step"


def test_the_figure_has_a_line_per_combination_and_the_advised_one_in_bold(make_rows):
    axes = section.build(make_rows("NVIDIA H200")).parts[0].drawing.axes[0]
    labels = {" ".join(label.get_text().split()): label.get_fontweight() for label in axes.get_yticklabels()}
    assert [label for label, weight in labels.items() if weight == "bold"] == [
        "fused AdamW + SDPA + torch.compile + a CUDA graph"
    ]


def test_no_words_of_the_figure_overlap_or_are_cut_off(make_rows):
    xl = make_rows("NVIDIA H200").query("size == 'xl'")
    rows = pd.concat([xl.assign(size=size) for size in ("small", "medium", "large", "xl", "2.35B", "2.7B")])
    for contexts in (1024, rows["size"].map(len) + 1000):
        drawing = section.build(rows.assign(context_length=contexts)).parts[0].drawing
        drawing.draw_without_rendering()
        words = [label.get_window_extent() for label in drawing.axes[0].get_yticklabels()]
        legend = drawing.legends[0].get_window_extent()
        assert all(drawing.bbox.x0 <= box.x0 and box.x1 <= drawing.bbox.x1 for box in [*words, legend])
        assert not any(one.overlaps(other) for one, other in itertools.combinations(words, 2))


def test_the_advice_says_what_a_lever_adds_to_the_others_where_it_gains_nothing_alone(make_rows):
    rows = make_rows("NVIDIA H200")
    assert re.search(r" Alone: .*, a CUDA graph 1\.0\d×\.", section.build(rows).actions[0].why)
    graph = (rows["size"] == "xl") & (rows["levers"] == "graph")
    rows.loc[graph, "median_ms"] *= 1.1
    added = gain_of(rows, "xl", "fused+sdpa+compile+graph", "fused+sdpa+compile")
    why = section.build(rows).actions[0].why
    assert why.endswith(f"; what gains nothing alone, on top of the others: a CUDA graph {ratio(added)}.")
    assert "a CUDA graph 0." not in why
    without = rows[(rows["size"] != "xl") | (rows["levers"] != "fused+sdpa+compile")]
    assert re.search(r" Alone: fused AdamW \S+, SDPA \S+, torch.compile \S+×\.", section.build(without).actions[0].why)


def test_the_table_has_each_lever_alone_then_those_that_join_one_after_the_other(rendered):
    table = rendered["NVIDIA H200"].text.split("how many times as fast as eager:")[1].split("\n\n")[1]
    steps = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    measured = [name for name in LEVERS if name in set(rendered["NVIDIA H200"].rows["levers"])]
    alone = [WORDS[name] for name in measured[:-2]]  # two more do not fit
    assert steps[: 1 + len(alone)] == ["eager", *alone]
    assert steps.pop() == "eager again"
    joined = [name.split(" + ") for name in steps[1 + len(alone) :]]
    assert [len(names) for names in joined] == [2, 3, 4, 5, 6]
    assert all(longer[: len(shorter)] == shorter for shorter, longer in itertools.pairwise(joined))
    assert len(steps) == MOST_TABLE_ROWS - 1
    assert "10%" in table.splitlines()[2]


def test_what_changes_the_loss_is_wrong_and_no_time(rendered):
    text = rendered["NVIDIA H200"].text
    assert "with our flash attention)" in text


def test_what_a_cpu_lacks_has_no_row_and_what_it_has_is_compared(rendered):
    text = rendered["AMD EPYC"].text
    assert "| a CUDA graph " not in text
    assert "peak GB" not in text


@pytest.mark.parametrize(("share", "advised"), [(0.5, True), (1.2, False)])
def test_the_fastest_combination_is_advised_where_it_is_clearly_faster(make_rows, tmp_path, share, advised):
    rows = make_rows("AMD EPYC")
    slow = rows["levers"] != "eager"
    base = rows.loc[~slow, ["median_ms", "q1_ms", "q3_ms"]].iloc[0]
    for name in base.index:
        rows.loc[slow & rows["median_ms"].notna(), name] = base[name] * share
    actions = section.build(rows).actions
    assert bool(actions) == advised


def test_weights_in_bf16_are_measured_and_not_advised(make_rows, tmp_path):
    (action,) = section.build(make_rows("NVIDIA H200")).actions
    assert action.what == "**Train with fused AdamW, SDPA, torch.compile and a CUDA graph.**"
    assert action.covers == ["compile"]


def test_the_advice_names_models_for_which_the_combination_is_wrong(make_rows):
    rows = make_rows("NVIDIA H200")
    assert "fails the check" not in section.build(rows).actions[0].why
    rows.loc[(rows["size"] == "medium") & (rows["levers"] == "fused+sdpa+compile+graph"), "status"] = "wrong"
    assert section.build(rows).actions[0].why.endswith(" For medium its loss fails the check.")


def test_the_largest_model_with_the_most_figures_is_shown_first(make_rows):
    rows = selection.ordered(make_rows("NVIDIA H200"))
    assert set(selection.largest(rows)["size"]) == {"xl"}
    rows = rows[(rows["size"] == "medium") | (rows["levers"] == "eager")]
    assert set(selection.largest(rows)["size"]) == {"medium"}


def test_what_the_machine_drifted_by_stands_in_the_table_alone(make_rows, tmp_path):
    rows = make_rows("NVIDIA H200")
    usual = BUILD(rows, tmp_path)
    again = rows["levers"] == "eager_again"
    rows.loc[again, "median_ms"] = 0.5 * rows.loc[rows["levers"] == "eager", "median_ms"].to_numpy()
    drifted = BUILD(rows, tmp_path)
    changed = [line for line, before in zip(drifted.splitlines(), usual.splitlines(), strict=True) if line != before]
    assert len(changed) == 1
    assert "eager again" in changed[0]
    assert "(2.00×)" in changed[0]


def test_of_two_cells_of_a_model_the_one_with_more_combinations_is_shown(make_rows, tmp_path):
    rows = make_rows("NVIDIA H200")
    few = rows[rows["levers"].isin(["eager", "sdpa", "eager_again"])].assign(combinations="sdpa")
    few = few.assign(median_ms=few["median_ms"] / 10)
    assert BUILD(pd.concat([few, rows], ignore_index=True), tmp_path) == BUILD(rows, tmp_path)


def test_nothing_is_gained_over_an_unstable_step(make_rows):
    rows = make_rows("AMD EPYC")
    rows.loc[rows["levers"] == "eager", "status"] = "unstable"
    told = section.build(rows)
    assert "is unstable, so what each lever gains is not known; the fastest that is stable" in told.answer
    assert "gains most" not in told.answer
    assert told.parts[0].title.endswith("× (unstable)")
    assert "is unstable" not in section.build(make_rows("AMD EPYC")).answer


def test_an_unstable_lever_is_not_the_one_that_gains_most(make_rows):
    rows = make_rows("AMD EPYC")
    rows.loc[rows["levers"] == "sdpa", "status"] = "unstable"
    assert "alone, fused AdamW gains most" in section.build(rows).answer


@pytest.mark.parametrize(
    ("status", "said"), [("ok", "no lever alone shortens"), ("unstable", "no lever alone whose time is stable")]
)
def test_where_no_lever_alone_gains_it_is_told_whether_all_times_are_stable(make_rows, status, said):
    rows = make_rows("NVIDIA H200")
    is_alone = rows["levers"].isin(LEVERS)
    rows.loc[is_alone, "median_ms"] *= 10
    rows.loc[rows["levers"] == "sdpa", "status"] = status
    assert said in section.build(rows).answer


def test_a_combination_within_the_quartiles_of_the_best_lever_gains_hardly_more(make_rows):
    rows = make_rows("AMD EPYC")
    assert "gain most" in section.build(rows).answer
    rows.loc[rows["levers"] == "sdpa", "q1_ms"] = 0.1
    assert "gain hardly more" in section.build(rows).answer
