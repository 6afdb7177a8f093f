import pytest

from pipeline.formulas.sizes import SIZES
from pipeline.report.page_parts import Table
from pipeline.stages.profile.report import baselines
from pipeline.stages.profile.report.facts import captures, lead, main_captures
from pipeline.stages.profile.report.section import build

from ..sections import (
    built,
    contents,
    drawn_figures,
    gaps,
    linked_figures,
    render,
)

text_of = built(build, "profile")


@pytest.fixture(scope="module")
def h200(make_rows):
    return make_rows("h200")


@pytest.fixture(scope="module")
def rendered(h200, tmp_path_factory):
    return render(text_of, {"h200": h200}, tmp_path_factory)["h200"]


@pytest.fixture
def on_a_cpu(h200):
    cpu = h200.assign(captured_by="torch.profiler", not_by_nsys="nsys captures need a CUDA GPU", cuda="none")
    cpu.loc[cpu["kind"] == "kernel", "kernel"] = "aten::mm"
    return cpu


def tables(section):
    return [item.cells for item in section.parts if isinstance(item, Table)]


def test_the_section_is_whole_and_every_figure_drawn_is_linked(rendered):
    assert gaps(rendered.text) == []
    assert linked_figures(rendered.text, "profile") == drawn_figures(rendered.folder) == {"categories"}


def test_the_section_and_its_figures_are_the_same_each_time(h200, rendered, tmp_path):
    assert text_of(h200, tmp_path) == rendered.text
    assert contents(tmp_path) == contents(rendered.folder)


def test_the_capture_to_speak_of_is_the_largest_with_a_training_step_in_the_lowest_precision(h200):
    first = lead(main_captures(captures(h200)))
    assert (first.cell.size, first.cell.precision, first.cell.context_length) == ("xl", "bf16", 256)
    first = lead(main_captures(captures(h200[h200["precision"] == "fp32"])))
    assert (first.cell.size, first.cell.context_length) == ("xl", 128)  # at 256 its training step did not fit


def test_the_answer_gives_shares_of_the_sum_of_all_categories(h200):
    rows = h200.query("kind == 'category' and size == 'xl' and precision == 'bf16' and context_length == 256")
    step = rows[rows["range"] == "train_step"].set_index("category")["time_ms"]
    answer = build(h200).answer
    assert f"is {step.sum():.2f} ms of kernels" in answer
    assert f"{100 * step['matmul'] / step.sum():.0f}% matmul" in answer


def test_softmax_stands_beside_the_products_alone(h200):
    found = {(one.cell.precision, one.cell.size, one.cell.context_length): one for one in captures(h200)}
    inference = found["bf16", "large", 256].attention.loc["inference"]
    assert inference.flops_ratio == pytest.approx(4 * 64 / 5)  # head_dim 64
    layers = SIZES["large"].num_layers / 3  # so many times what the simulated GPU runs, at 300 TFLOP/s
    assert inference.products_flops / inference.products_ms / 1e9 == pytest.approx(300 * layers)
    assert inference.total_ms > inference.products_ms + inference.softmax_ms  # for the mask's kernel is in it


def test_the_kernels_shown_are_those_with_the_most_time_and_their_share_is_of_the_pass(h200):
    (kernels,) = tables(build(h200))
    times_ms = [float(time_ms) for time_ms in kernels["time (ms)"]]
    assert times_ms == sorted(times_ms, reverse=True)
    assert kernels["name"][0].startswith("nvjet_tst")


def test_every_question_is_answered(h200):
    answers = {problem.name: problem.answer for problem in build(h200).problems}
    assert list(answers) == [f"nsys_profile ({letter})" for letter in "abcde"]
    assert "`nvjet_tst_128x256_64x4_v_bz_TNT`" in answers["nsys_profile (b)"]
    assert "in 21 calls" in answers["nsys_profile (b)"]
    assert "bf16 backwards" in answers["nsys_profile (e)"]


def test_the_forward_pass_furthest_from_the_host_clock_is_named(h200):
    host = h200.query("kind == 'time' and clock == 'host' and range == 'inference' and size == 'small'").index
    slow = h200.copy()
    slow.loc[host, "median_ms"] *= 2
    (answer,) = [item.answer for item in build(slow).problems if item.name == "nsys_profile (a)"]
    assert "(-50.5%; " in answer
    assert "for small" in answer


def test_a_capture_without_attentions_ranges_has_no_answer_e(h200):
    without = build(h200[h200["kind"] != "attention"])
    assert "nsys_profile (e)" not in [problem.name for problem in without.problems]


def test_a_capture_without_a_training_step_speaks_of_the_pass_that_there_is(h200):
    only = build(h200.query("size == 'xl' and precision == 'fp32' and context_length == 256"))
    assert only.answer.startswith("A forward pass (xl, fp32, batch 4, context 256) is")


def test_two_profilers_of_one_configuration_are_compared(h200, rendered):
    assert "nsys and torch.profiler give kernel times of the same passes within" in rendered.text
    apart = h200.copy()
    apart.loc[h200.query("profiler == 'torch' and clock == 'kernel_sum'").index, "median_ms"] *= 1.25
    assert "within 25%" in "".join(map(str, build(apart).parts))
    assert "of the same passes" not in "".join(map(str, build(h200[h200["profiler"] == "auto"]).parts))


def test_two_captures_by_one_profiler_are_not_compared(on_a_cpu):
    assert "of the same passes" not in "".join(map(str, build(on_a_cpu).parts))


def test_what_did_not_fit_is_counted_with_its_reason(rendered):
    assert "5 of 42 figures are missing" in rendered.text
    assert "CUDA out of memory" in rendered.text


def test_operators_in_place_of_kernels_are_said_to_be_so(on_a_cpu, tmp_path):
    text = text_of(on_a_cpu.assign(reason=None, not_by_nsys=None), tmp_path)
    assert "ms of operators" in text
    assert [word for word in ("GPU", "correlation") if word in text] == []


def test_nothing_captured_gives_the_reason_alone(make_rows):
    nothing = build(make_rows("skipped"))
    assert nothing.answer == "Nothing was measured: nsys captures need a CUDA GPU."
    assert (nothing.parts, nothing.actions, nothing.problems) == ((), (), ())


def test_others_stand_beside_ours_where_both_are_known(h200):
    pairs = baselines.pairs(h200)
    shares = pairs[pairs["unit"] == "%"].set_index("what")["theirs"]
    assert shares["matrix products, share of kernel time, train step, small, fp32, context 256"] == 63
    assert pairs.drop(columns="note").notna().all(axis=None)
    assert baselines.pairs(h200[h200["size"] == "xl"]).empty
