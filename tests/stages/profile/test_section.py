import re

import pytest

from pipeline.formulas.sizes import SIZES
from pipeline.stages.profile.report import findings, section
from pipeline.stages.profile.report.selection import main_captures, ordered, reference_cell

from ..sections import (
    contents,
    drawn_figures,
    faults_of_parts,
    gaps,
    keys,
    linked_figures,
    numbers_that_stay,
    unnamed_rows,
)

QUESTIONS = [f"### nsys_profile ({letter})" for letter in "abcde"]


@pytest.fixture(scope="module")
def h200(make_rows):
    return make_rows("h200")


@pytest.fixture(scope="module")
def rendered(h200, tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    return section.build(h200, folder), folder


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Return a function that writes the section without drawing its figures, which takes the most time."""
    monkeypatch.setattr(section, "draw_all", lambda *_what: {"categories": "figures/profile/categories.svg"})
    return lambda rows: section.build(rows, tmp_path)


def test_every_question_is_answered_under_its_name(rendered):
    text, _ = rendered
    assert [text.count(question) for question in QUESTIONS] == [1] * 5


def test_every_figure_is_drawn_and_linked(rendered):
    text, folder = rendered
    assert linked_figures(text, "profile") == drawn_figures(folder) == {"categories", "layer", "top_kernels"}


def test_no_number_is_missing(rendered):
    assert gaps(rendered[0]) == []


def test_no_number_of_the_prose_stays_when_every_figure_is_another(h200, build):
    ours = lambda rows: build(rows).split("### Others' figures")[0]  # noqa: E731
    assert numbers_that_stay(ours, h200, keys("profile")) == set()


def test_the_section_of_a_part_of_the_cells_is_whole(h200, tmp_path_factory):
    assert faults_of_parts(section.build, "profile", h200, tmp_path_factory) == {}


def test_the_columns_of_rows_tell_the_rows_of_a_cell_apart(h200):
    assert unnamed_rows("profile", h200).empty


def test_the_section_and_its_figures_are_the_same_each_time(h200, rendered, tmp_path):
    text, folder = rendered
    assert section.build(h200, tmp_path) == text
    assert contents(tmp_path) == contents(folder)


def test_the_kernel_that_leads_both_passes_is_told_from_one_that_leads_backward_only(rendered):
    said = rendered[0].partition("- **fp32**: `sm80_xmma_gemm")[2].partition("\n- **")[0].replace("\n", " ")
    assert "in 21 calls" in said
    assert "together it is the same kernel for small and large" in said
    assert "alone has another first for small and large" in said


def test_a_span_near_the_host_clock_is_called_the_same_and_one_far_from_it_is_not(h200, build):
    assert "Within 3.0% they are the same for small, large and xl" in build(h200)
    slow = h200.copy()
    host = (slow["clock"] == "host") & (slow["range"] == "inference") & (slow["size"] == "small")
    slow.loc[host, "median_ms"] *= 2
    assert "The span is more than 3.0% shorter for small" in build(slow)
    assert "Within 3.0% they are the same for large and xl" in build(slow)


def test_the_cause_of_a_longer_span_is_given_only_where_the_host_clock_saw_it(h200, build):
    inference = (h200["range"] == "inference") & (h200["size"] == "small")
    longer = h200.copy()
    longer.loc[inference & (h200["clock"] == "span"), "median_ms"] *= 1.5
    assert "The span is more than 3.0% longer for small" in build(longer)
    assert "sees it too" not in build(longer)
    longer.loc[inference & (h200["clock"] == "profiled"), "median_ms"] *= 1.5
    assert "For small the host clock sees it too" in build(longer)


def test_launches_are_called_slowed_only_where_the_kernels_alone_would_fit_the_host_clock(h200, build):
    inference = (h200["range"] == "inference") & (h200["size"] == "small")
    slowed = h200.copy()
    slowed.loc[inference & h200["clock"].isin(["span", "profiled"]), "median_ms"] *= 1.5
    slowed.loc[inference & (h200["clock"] == "busy"), "median_ms"] *= 0.8
    assert "The kernels of small take less than that clock" in build(slowed)
    slowed.loc[inference & (h200["clock"] == "busy"), "median_ms"] *= 2
    assert "take less than that clock" not in build(slowed)


def test_a_gpu_is_idle_for_what_is_not_busy_of_the_span(h200):
    inference = (h200["kind"] == "time") & (h200["range"] == "inference")
    medians_ms = h200["clock"].map({"host": 10.0, "span": 8.0, "busy": 6.0})
    rows = h200.assign(median_ms=medians_ms.where(inference, h200["median_ms"]))
    for entry in findings.forward_time(ordered(main_captures(rows)), 256):
        assert set(entry["idle"]) == {1 - 6 / 8}


def test_what_is_beside_matmul_is_the_share_of_all_other_categories(h200):
    rows = ordered(main_captures(h200)).query("kind == 'category' and range == 'inference' and context_length == 256")
    others = rows[rows["category"] != "matmul"].groupby(["precision", "size"])["share_pct"].sum() / 100
    for entry in findings.beside_matmul(rows, 256):
        assert entry["share"].to_dict() == pytest.approx(others[entry["precision"]].to_dict())


def test_matmul_shares_are_compared_by_their_means(h200, build):
    rows = ordered(main_captures(h200))
    fp32, bf16 = findings.training_against_inference(rows, 256)
    assert (fp32["precision"], bf16["precision"]) == ("fp32", "bf16")
    assert (fp32["word"], bf16["word"]) == ("", "lower")
    assert bf16["gains"][0]["name"] == "optimizer"
    assert list(fp32["training"].index) == ["small", "large"]  # xl has no training step


def test_softmax_stands_beside_the_products_alone(h200):
    table = findings.attention(ordered(main_captures(h200)))
    row = table.query("precision == 'bf16' and size == 'large' and context_length == 256").iloc[0]
    assert row["products_ms"] == pytest.approx(2 * row["final_ms"])
    assert row["time_ratio"] == pytest.approx(row["products_ms"] / row["softmax_ms"])
    assert row["flops_ratio"] == pytest.approx(4 * 64 / 5)  # head_dim 64
    layers = SIZES["large"].num_layers / 3  # so many times what the simulated GPU runs, at 300 TFLOP/s
    assert row["products_tflops_per_s"] == pytest.approx(300 * layers)
    assert row["scores_ms"] > row["final_ms"]


def test_what_did_not_fit_shows_as_such_and_not_as_a_number(rendered):
    missing = rendered[0].partition("### What was not captured")[2]
    assert re.search(r"xl .*forward \+ backward, train step .*OOM", missing)
    assert re.search(r"2\.7B .*all .*OOM", missing)


def test_the_cell_shown_in_detail_is_the_largest_with_every_pass(h200):
    rows = ordered(main_captures(h200))
    assert reference_cell(rows, 256)["size"] == "large"
    assert reference_cell(rows, 128)["size"] == "xl"


def test_two_profilers_of_one_configuration_are_compared(rendered, h200, build):
    assert "### Two profilers on the same passes" in rendered[0]
    assert "### Two profilers" not in build(h200[h200["profiler"] == "auto"])


def test_profilers_are_said_to_agree_only_where_the_kernels_times_do(h200, build):
    assert "the profilers agree" in build(h200)
    apart = h200.copy()
    by_torch = (h200["profiler"] == "torch") & (h200["clock"] == "kernel_sum")
    apart.loc[by_torch, "median_ms"] *= 1.25
    words = findings.two_profilers_words(findings.two_profilers(apart))
    assert words["apart"] == pytest.approx(0.25, abs=0.05)
    assert "the profilers agree" not in build(apart)


def test_others_stand_beside_ours_where_both_are_known(rendered):
    lines = rendered[0].partition("### Others' figures")[2].splitlines()
    theirs = next(line for line in lines if "write-up 3" in line and "forward" in line)
    assert "`ampere_sgemm_128x64_tn`, 96 calls" in theirs
    assert theirs.count("sm80_xmma_gemm") == 1
    unnamed = next(line for line in lines if "write-up 1" in line)
    assert unnamed.rstrip(" |").endswith("–")


def test_sizes_that_nobody_else_measured_are_compared_with_nobody(h200, build):
    assert "Others' figures" not in build(h200[h200["size"] == "xl"])


def test_operators_in_place_of_kernels_are_said_to_be_so(h200, build):
    cpu = h200.assign(captured_by="torch.profiler", not_by_nsys="nsys captures need a CUDA GPU", cuda="none")
    cpu.loc[cpu["kind"] == "kernel", "kernel"] = "aten::mm"
    text = build(cpu)
    assert "Without a GPU there are no kernels" in text
    assert "nsys captures need a CUDA GPU" in text
    assert "capture for Nsight Systems" not in text


def test_nothing_captured_gives_the_reasons_alone(make_rows, build):
    text = build(make_rows("skipped"))
    assert "No profile could be captured" in text
    assert "nsys captures need a CUDA GPU" in text
    assert "![" not in text


def test_one_capture_without_a_training_step_is_enough(h200, build):
    only = h200.query("size == 'xl' and precision == 'fp32' and context_length == 256")
    text = build(only)
    assert "### nsys_profile (e)" in text
    assert ": matrix products take" not in text


def test_attentions_backward_pass_is_answered_where_it_was_captured(h200, build):
    assert "The same in the backward pass" in build(h200)
    assert "The same in the backward pass" not in build(h200[h200["range"] != "backward_by_part"])


def test_a_capture_without_attentions_ranges_has_no_answer_e(h200, build):
    text = build(h200[h200["kind"] != "attention"])
    assert "### nsys_profile (e)" not in text
