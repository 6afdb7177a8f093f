import pytest

from pipeline.report.page_parts import Figure, Table
from pipeline.stages.fsdp.report import facts, section

from ..sections import built, contents, gaps, thrice

every_table = pytest.mark.parametrize("name", ["h200", "small_gpu", "smoke", "skipped"])


@pytest.fixture
def text(undrawn, tmp_path):
    return lambda rows: built(section.build, "fsdp")(rows, tmp_path)


def problem(rows, name):
    return next((item.answer for item in section.build(rows).problems if item.name == name), "")


@every_table
def test_the_section_holds_no_gap_in_its_words(request, text, name):
    assert gaps(text(request.getfixturevalue(name))) == []


@pytest.mark.parametrize(("name", "lines"), [("h200", 12), ("small_gpu", 6), ("smoke", 6)])
def test_time_and_memory_are_drawn_and_each_way_has_a_row(request, name, lines):
    parts = section.build(request.getfixturevalue(name)).parts
    assert [part.name for part in parts if isinstance(part, Figure)] == ["time_and_memory"]
    assert [len(part.cells) for part in parts if isinstance(part, Table)] == [lines]


def test_drawn_twice_the_section_has_the_same_bytes(h200, tmp_path):
    texts = [built(section.build, "fsdp")(h200, tmp_path / name) for name in ("a", "b")]
    assert texts[0] == texts[1]
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_the_section_of_cells_with_repeats_is_whole(h200, text):
    assert gaps(text(thrice("fsdp", h200))) == []


def test_the_answer_gives_step_and_peak_of_ours(h200):
    run = facts.runs(h200)[0]
    peak_gb = run.peak_bytes.loc[facts.OURS, "measured"] / 1e9
    step_ms = run.steps.loc[facts.OURS, "median_ms"]
    assert f"our FSDP takes {step_ms:.0f} ms a step and peaks at {peak_gb:.1f} GB" in section.build(h200).answer


def test_what_other_precisions_take_stands_below_the_answer(h200):
    shown = section.build(h200)
    other = next(part for part in shown.parts if isinstance(part, str))
    assert "in fp32 on 2 ranks" in shown.answer
    assert other.startswith("xl in bf16 on 2 ranks")
    assert "our FSDP takes" in other
    assert "" in section.build(h200[h200["precision"] == "fp32"]).parts


def test_sharding_is_advised_where_it_saves_memory_or_ddp_does_not_fit(h200, small_gpu, smoke):
    (action,) = section.build(h200).actions
    assert facts.DDP in action.why
    assert "in fp32" in action.why  # in bf16 ours reduces gradients in bf16, and DDP in fp32
    assert section.build(h200[h200["precision"] == "bf16"]).actions == []
    assert "our DDP runs out of memory; our FSDP takes" in section.build(small_gpu).actions[0].why
    level = h200.copy()
    peaks = level["kind"] == "peak"
    level.loc[peaks, "measured_bytes"] = level.loc[peaks, "measured_bytes"].max()
    assert section.build(level).actions == []
    assert section.build(smoke).actions == []  # no allocator tells a peak


def test_counts_that_are_not_those_predicted_are_said_not_to_be(h200):
    assert "are those of the formulas" in problem(h200, "fsdp")
    off = h200.copy()
    off.loc[(off["kind"] == "gradients") & (off["impl"] == "fsdp"), "measured_bytes"] += 4
    assert "**are not those of the formulas**" in problem(off, "fsdp")


def test_gathers_are_said_to_arrive_in_time_where_little_of_them_is_exposed(h200):
    here = (h200["impl"] == "fsdp") & (h200["phase"] == "train_step")
    timed = h200.assign(span_ms=h200["span_ms"].where(h200["span_ms"].isna(), h200.loc[here, "median_ms"].iloc[0]))
    assert problem(timed, "fsdp_accounting (b)").count("they arrive in time") == 2
    late = timed.assign(gather_exposed_ms=timed["gather_ms"])
    assert problem(late, "fsdp_accounting (b)").count("do not all arrive in time") == 2
    disturbed = timed.assign(span_ms=1.2 * timed["span_ms"])
    assert problem(disturbed, "fsdp_accounting (b)") == ""


def test_a_machine_with_one_gpu_gets_the_reason_alone(skipped):
    only = section.build(skipped)
    assert only.answer == "Nothing was measured: needs 2 GPUs, 1 present."
    assert (only.parts, only.actions, only.problems) == ((), (), ())
