import numpy as np
import pytest

from pipeline.report.baselines import COLUMNS
from pipeline.report.page_parts import Table
from pipeline.report.table_rows import ok
from pipeline.stages.memory.report import baselines, checkpoints, figures
from pipeline.stages.memory.report.actions import actions, flash_and_checkpoints
from pipeline.stages.memory.report.facts import headline, recordings
from pipeline.stages.memory.report.section import build

from ..sections import (
    built,
    contents,
    drawn_figures,
    gaps,
    linked_figures,
    render,
)

FIGURES = {
    "h200": {"composition", "timeline"},
    "smoke": {"composition", "timeline"},
    "skipped": set(),
}
text_of = built(build, "memory")


@pytest.fixture(scope="module")
def rendered(rows_of, tmp_path_factory):
    return render(text_of, rows_of, tmp_path_factory)


def said(rows):
    """Return the titles of the actions by the reason that each gives."""
    shown = [one for one in recordings(rows) if not one.cell.num_layers]
    return {str(action.what): str(action.why) for action in actions(shown)}


@pytest.mark.parametrize("name", FIGURES)
def test_the_section_is_whole_and_every_figure_drawn_is_linked(rendered, name):
    _, text, folder = rendered[name]
    assert gaps(text) == []
    assert linked_figures(text, "memory") == drawn_figures(folder) == FIGURES[name]


def test_figures_are_the_same_bytes_when_drawn_again(rendered, rows_of, tmp_path):
    assert text_of(rows_of["smoke"], tmp_path) == rendered["smoke"].text
    assert contents(tmp_path) == contents(rendered["smoke"].folder)


def test_the_answer_is_the_plain_step_at_the_longest_context_in_bf16(rows_of, tmp_path):
    rows = rows_of["h200"]
    step = rows.query("kind == 'peak' and precision == 'bf16' and context_length == 1024 and mode == 'train_step'")
    step = step.query("attention == 'eager' and checkpoint_every == 0 and step == 2")
    answer = build(rows).answer
    assert "(2.7B, bf16, batch 4, context 1024)" in answer
    assert f"peaks at {step['peak_bytes'].max() / 1e9:.1f} GB of the 141 GB that can be allocated" in answer


def test_a_cell_that_ran_out_of_memory_has_no_number_and_ratios_are_to_the_first_that_fits(rows_of, tmp_path):
    (trade,) = [part.cells for part in build(rows_of["h200"]).parts if isinstance(part, Table)]
    ran_out, flash = trade.query("precision == 'fp32' and context == 1024").to_dict("records")
    assert (ran_out["peak"], ran_out["ratio"], ran_out["step (ms)"]) == ("OOM", "", "")
    assert (flash["variant"], flash["ratio"], flash["time ratio"]) == ("flash attention", "1.00×", "1.00×")


def test_ratios_are_to_eager_without_checkpoints(rows_of, tmp_path):
    (trade,) = [part.cells for part in build(rows_of["h200"]).parts if isinstance(part, Table)]
    assert trade.query("precision == 'bf16' and variant == 'flash attention'")["time ratio"].item() == "0.800×"


def test_an_unstable_step_is_marked_in_the_table_and_in_words(rows_of, tmp_path):
    rows = rows_of["h200"].copy()
    marks = [
        part.cells["step (ms)"].str.endswith("(unstable)") for part in build(rows).parts if isinstance(part, Table)
    ]
    assert not marks[0].any()
    rows.loc[rows["kind"] == "time", "status"] = "unstable"
    built = build(rows)
    (trade,) = [part.cells for part in built.parts if isinstance(part, Table)]
    assert trade.loc[trade["step (ms)"] != "", "step (ms)"].str.endswith(" (unstable)").all()
    answers = {problem.name: problem.answer for problem in built.problems}
    assert "(unstable)" in answers["gradient_checkpointing (b)"]


def test_flash_attention_is_advised_where_it_saves_memory_and_time(rows_of):
    why = said(rows_of["h200"])["**Use flash attention before checkpointing.**"]
    assert "from 1.02 s to 819 ms" in why
    assert "but takes 1.33 s" in why
    assert "At context 1024 in fp32 plain attention runs out of memory" in why


@pytest.mark.parametrize(
    ("attention", "every", "column", "factor"),
    [
        ("flash", 0, ["median_ms", "q1_ms", "q3_ms"], 1.45),  # slower than eager, not than checkpoints
        ("eager", 1, ["median_ms", "q1_ms", "q3_ms"], 0.5),  # checkpoints take less time
        ("flash", 0, ["peak_bytes"], 3),  # saves no memory
    ],
)
def test_flash_attention_is_not_advised_where_the_data_do_not_bear_it_out(rows_of, attention, every, column, factor):
    rows = rows_of["h200"].copy()
    rows.loc[(rows["attention"] == attention) & (rows["checkpoint_every"] == every), column] *= factor
    assert flash_and_checkpoints(recordings(rows)) is None
    assert "**Use flash attention before checkpointing.**" not in said(rows)


def test_checkpoints_are_advised_beside_flash_only_where_they_save_memory(rows_of):
    title = "**Where flash attention alone takes too much memory, checkpoint every block too.**"
    rows = rows_of["h200"].copy()
    assert title not in said(rows)
    rows.loc[(rows["attention"] == "flash") & (rows["checkpoint_every"] == 0), "peak_bytes"] *= 2
    assert "at +30% time" in said(rows)[title]


def test_another_adamw_is_advised_where_its_temporaries_are_at_the_peak_of_a_gpu(rows_of):
    title = "**Use fused AdamW where the update is the peak.**"
    rows = rows_of["h200"]
    assert "13.6 GB (20%) are temporaries" in said(rows)[title]
    assert title not in said(rows.assign(temporaries_bytes=0))
    assert title not in said(rows.assign(device_type="cpu"))
    assert title not in said(rows_of["smoke"])


def test_every_question_is_answered(rows_of, tmp_path):
    answers = {problem.name: problem.answer for problem in build(rows_of["h200"]).problems}
    assert list(answers) == [
        *(f"memory_profiling ({letter})" for letter in "abcdef"),
        "gradient_checkpointing (a)",
        "gradient_checkpointing (b)",
    ]
    assert "4 × 1024 × 2560 × 4 = 41,943,040 bytes = 40.0 MiB" in answers["memory_profiling (d)"]
    assert "64 tensors of just this size" in answers["memory_profiling (d)"]
    assert "96 of parameters at `model/transformer.py:9 __init__`" in answers["memory_profiling (e)"]


def with_peaks(rows, every, factor):
    """Scale the peaks of training steps of 2.7B in bf16 with checkpoints every so many blocks."""
    rows = rows.copy()
    here = (rows["size"] == "2.7B") & (rows["checkpoint_every"] == every) & (rows["kind"] == "peak")
    rows.loc[here, "peak_bytes"] *= factor
    return rows


@pytest.mark.parametrize(("factor", "best"), [(1, "1"), (3, "4")])
def test_the_best_interval_of_checkpoints_is_that_with_the_lowest_measured_peak(rows_of, factor, best):
    rows = with_peaks(rows_of["h200"], every=1, factor=factor)
    answer = checkpoints.problems(recordings(rows))[1].answer
    assert "with a checkpoint every block (1.33 s) and" in answer
    assert f"of the measured intervals {best} is best, by formula 1 of 1 to 32" in answer


KINDS = (
    "no checkpoints",
    "a checkpoint every block",
    "recursive checkpoints",
    "a checkpoint every block that keeps attention",
)


def test_the_least_peak_is_told_of_the_most_blocks_with_what_other_checkpoints_take(rows_of):
    answer = checkpoints.problems(recordings(rows_of["h200"]))[0].answer
    assert "At 64 blocks (small of 64 blocks, bf16, batch 4, context 4096)" in answer
    assert "at most 7 inputs are alive and 224 run again" in answer
    assert [words for words in KINDS if f"with {words}" not in answer] == ["recursive checkpoints"]


def test_at_more_blocks_recursive_checkpoints_take_least(rows_of):
    deepest = {one.checkpoints: one for one in recordings(rows_of["h200"]) if one.cell.num_layers == 64}
    taken = {words: checkpoints.backward_bytes(one) for words, one in deepest.items()}
    assert set(taken) == set(KINDS)
    assert min(taken, key=taken.get) == "recursive checkpoints"
    assert max(taken, key=taken.get) == "no checkpoints"


def test_steps_of_a_chosen_number_of_blocks_alone_are_a_section(rows_of, tmp_path):
    rows = rows_of["h200"]
    assert "small of 64 blocks" in text_of(rows[rows["num_layers"] > 0], tmp_path)


def test_what_a_block_saves_is_told_of_the_longest_context_in_bf16(rows_of):
    (answer,) = [item.answer for item in build(rows_of["h200"]).problems if item.name == "memory_profiling (f)"]
    assert "A block (2.7B, bf16, batch 4, context 1024" in answer
    assert answer.count("Silu.self") == 5


def test_a_residual_stream_that_is_not_found_is_not_claimed(rows_of, tmp_path):
    rows = rows_of["h200"]
    other = rows.assign(size_bytes=rows["size_bytes"].where(rows["kind"] != "residual", 12_345_678))
    (answer,) = [item.answer for item in build(other).problems if item.name.endswith("(d)")]
    assert "of just this size" not in answer
    assert "11.8 MiB" in answer


def test_without_bf16_mixed_precision_is_not_spoken_of(rows_of, tmp_path):
    rows = rows_of["h200"]
    names = [problem.name for problem in build(rows[rows["precision"] == "fp32"]).problems]
    assert names == [f"memory_profiling ({letter})" for letter in "abdef"]


def test_the_formulas_error_is_that_of_the_worst_recording(rows_of, tmp_path):
    rows = rows_of["h200"].copy()
    here = (rows["kind"] == "peak") & (rows["context_length"] == 128) & (rows["mode"] == "inference")
    rows.loc[here & (rows["precision"] == "fp32"), "peak_bytes"] *= 2
    text = text_of(rows, tmp_path)
    assert "within 50%; the largest error is of a forward without gradients (2.7B, fp32, batch 4, context 128" in text


def test_where_nothing_was_measured_the_reason_is_all(rendered):
    _, text, _ = rendered["skipped"]
    _, answer, links = text.strip().split("\n\n")
    assert answer == "**Nothing was measured: flash attention needs a CUDA GPU.**"
    assert links.startswith("All rows:")


def test_on_a_cpu_nothing_is_said_of_gpus(rendered):
    text = rendered["smoke"].text.replace("flash attention needs a CUDA GPU", "")
    assert [word for word in ("GPU", "CUDA", "caching allocator", "the device") if word in text] == []


def test_others_stand_beside_ours_for_the_same_thing_only(rows_of):
    pairs = baselines.pairs(rows_of["h200"])[COLUMNS]
    assert len(pairs) > 10
    assert pairs.notna().all(axis=None)
    forward = pairs[pairs["what"] == "peak of a forward (no gradients), 2.7B, fp32, context 128"]
    ours = ok(rows_of["h200"]).query("context_length == 128 and mode == 'inference' and precision == 'fp32'")
    assert set(forward["ours"]) == {ours.query("step == 2")["peak_bytes"].max() / 1e9}
    assert baselines.pairs(rows_of["smoke"]).empty
    of_other_blocks = rows_of["h200"].query("num_layers == 0").assign(num_layers=4)
    assert baselines.pairs(of_other_blocks).empty


def test_a_recording_gives_a_timeline_of_many_moments(rows_of):
    timeline = rows_of["smoke"].query("kind == 'timeline'").iloc[0]
    assert len(timeline["events"]) == len(timeline["active_bytes"]) > 50


def test_of_two_precisions_at_the_longest_context_bf16_is_spoken_of(rows_of):
    rows = rows_of["h200"]
    cell = headline(recordings(rows[rows["context_length"] <= 512])).cell
    assert (cell.precision, cell.context_length, cell.mode) == ("bf16", 512, "train_step")


def test_a_timeline_of_many_events_keeps_its_peak_and_its_end():
    total = np.random.default_rng(0).uniform(size=10_001)
    shown = figures._highest_moments(total)
    assert len(shown) <= figures.MOST_MOMENTS + 1
    assert total[shown].max() == total.max()
    assert shown[-1] == len(total) - 1
    assert list(figures._highest_moments(total[:3])) == [0, 1, 2]
