import re

import pytest

from pipeline.formulas.parameters import parameter_bytes
from pipeline.formulas.sizes import SIZES
from pipeline.report.reasons import brief
from pipeline.report.section import data_size, mib
from pipeline.report.table_rows import ok
from pipeline.stages.memory.report import baselines, findings, predicted, section, selection, trade
from pipeline.stages.memory.report.selection import complete

from ..sections import (
    contents,
    drawn_figures,
    faults_of_parts,
    gaps,
    linked_figures,
    numbers_that_stay,
    part,
    render,
    template_numbers,
    unnamed_rows,
)

FIGURES = {
    "h200": {"timeline_inference", "timeline_forward", "timeline_train_step", "peak_composition", "trade"},
    "smoke": {"timeline_inference", "timeline_train_step", "peak_composition", "trade"},
    "skipped": set(),
}


@pytest.fixture(scope="module")
def rendered(rows_of, tmp_path_factory):
    return render(section.build, rows_of, tmp_path_factory)


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Write the section without its figures, which take longest: for tests of words."""
    links = {"peak_composition": "figures/memory/peak_composition.svg"}
    monkeypatch.setattr(section, "draw_all", lambda *arguments: links)
    return lambda rows: section.build(rows, tmp_path)


def prepared(rows):
    return predicted.with_predictions(complete(rows))


@pytest.mark.parametrize("name", FIGURES)
def test_the_section_holds_no_gap_in_its_words(rendered, name):
    assert gaps(rendered[name].text) == []


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_drawn_is_linked_and_every_link_is_drawn(rendered, name):
    _, text, folder = rendered[name]
    assert linked_figures(text, "memory") == FIGURES[name]
    assert drawn_figures(folder) == FIGURES[name]


def test_figures_are_the_same_bytes_when_drawn_again(rendered, rows_of, tmp_path):
    folder = rendered["smoke"].folder
    section.build(rows_of["smoke"], tmp_path)
    assert contents(tmp_path) == contents(folder)


def test_the_template_has_no_number_of_its_own():
    assert template_numbers(section.TEMPLATE) == []


KEYS = [
    *selection.AXES,
    "setting_batch_size",
    "setting_vocab_size",
    "kind",
    "step",
    "begin_event",
    "end_event",
    "peak_event",
    "rank",
]


def predicted_by_the_model(rows):
    """Give the numbers of the residual stream and of what bf16 keeps, which follow from the axes alone."""
    rows = complete(rows)
    kept = findings.kept_in_bf16(rows, selection.shown_context(rows))
    residual = findings.residual(rows, rows["size"].iloc[0])
    amounts = [data_size(kept[name]) for name in ("copies", "fp32", "bf16")]
    amounts += [form(count) for count in residual["bytes"] for form in (mib, "{:.0f}".format)]
    return {f"{float(amount.split()[0]):g}" for amount in amounts} | {str(residual["count"])}


@pytest.mark.parametrize("name", ["h200", "smoke"])
def test_no_number_of_the_prose_stays_when_the_tables_change(rows_of, build, name):
    rows = rows_of[name]
    recordings = len(ok(rows).drop_duplicates(selection.AXES))
    with_gradients = ((rows["kind"] == "saved") & (rows["mode"] != "inference")).sum()
    unit = {"h200": 1e9, "smoke": 1e6}[name]
    derived_from_axes = {SIZES[rows["size"].iloc[0]].d_model, 4, 91.6}  # d_model, bytes, GB that an OOM cell would need
    limit_pct = 100 * predicted.PREDICTED_WITHIN
    allowed = {f"{number:g}" for number in (recordings, with_gradients, unit, limit_pct, *derived_from_axes)}
    allowed |= predicted_by_the_model(rows)
    ours = lambda table: build(table).split("### Others' figures")[0]  # noqa: E731
    assert numbers_that_stay(ours, rows, KEYS, allowed) == set()


def test_the_section_of_a_part_of_the_cells_is_whole(rows_of, tmp_path_factory):
    assert faults_of_parts(section.build, "memory", rows_of["h200"], tmp_path_factory) == {}


@pytest.mark.parametrize("name", FIGURES)
def test_the_columns_of_rows_tell_the_rows_of_a_cell_apart(rows_of, name):
    assert unnamed_rows("memory", rows_of[name]).empty


@pytest.mark.parametrize("letter", "abcde")
def test_each_question_of_the_problem_is_answered(rendered, letter):
    _, text, _ = rendered["h200"]
    assert len(part(text, f"memory_profiling ({letter})").split()) > 30


def test_where_nothing_was_measured_one_line_says_so_and_why(rendered):
    _, text, _ = rendered["skipped"]
    assert "No memory could be recorded" in text
    assert "flash attention needs a CUDA GPU" in text
    assert "![" not in text


def test_memory_that_others_held_stands_beside_the_prediction_of_a_cell_that_ran_out(rows_of, build):
    rows = rows_of["h200"].copy()
    said = (
        "CUDA out of memory. Tried to allocate 2.00 MiB. Process 7 has 70.67 GiB memory in use. Including non-PyTorch "
        "memory, this process has 56.20 GiB memory in use."
    )
    rows.loc[rows["status"] == "oom", "reason"] = brief(said)  # as tables are read
    text = build(rows)
    assert re.search(r"the model predicts .* GB; other processes held 71 GiB of the GPU\.\n", text)
    assert "Process 7" not in text


def test_an_oom_cell_shows_as_oom_and_never_as_a_number(rendered):
    _, text, _ = rendered["h200"]
    (line,) = [
        line for line in part(text, "memory_profiling (b)").splitlines() if re.match(r"\| fp32 +\| +1024 ", line)
    ]
    assert "OOM" in line


def test_a_skipped_variant_is_named_with_its_reason(rendered):
    _, text, _ = rendered["smoke"]
    assert "flash attention needs a CUDA GPU" in part(text, "What was not measured, or not well")


def test_peaks_in_the_table_are_the_highest_of_the_last_step(rows_of, rendered):
    rows, text, _ = rendered["h200"]
    step = rows.query("precision == 'fp32' and context_length == 256 and mode == 'train_step' and step == 2")
    step = step[(step["attention"] == "eager") & (step["checkpoint_every"] == 0)]
    (line,) = [line for line in part(text, "memory_profiling (b)").splitlines() if re.match(r"\| fp32 +\| +256 ", line)]
    assert f"{step['peak_bytes'].max() / 1e9:.1f} |" in line


def test_growth_is_the_peak_at_the_longest_context_over_that_at_the_shortest(rows_of):
    rows = rows_of["h200"]
    found = findings.growth(prepared(rows.assign(peak_bytes=1e6 * rows["context_length"])), "2.7B")
    assert {(entry["from"], entry["to"], entry["ratio"]) for entry in found} == {(128, 1024, 8), (128, 512, 4)}


def test_gradients_are_there_in_full_when_the_optimizer_runs(rows_of):
    for entry in findings.phases(prepared(rows_of["h200"]), "2.7B", 256):
        assert entry["gradients"] == parameter_bytes(SIZES["2.7B"], vocab_size=10_000)


def test_the_residual_stream_is_derived_and_found(rendered):
    text = part(rendered["h200"].text, "memory_profiling (d)")
    assert "4 × 128 × 2560 × 4" in text
    assert "= 5,242,880 bytes = 5.00 MiB" in text
    assert "make 64 tensors" in text


def test_a_residual_stream_that_is_not_found_is_not_claimed(rows_of, build):
    rows = rows_of["h200"]
    residual = rows["kind"] == "residual"
    other = rows.assign(size_bytes=rows["size_bytes"].where(~residual, 12_345_678))
    text = part(build(other), "memory_profiling (d)")
    assert "hold it" not in text
    assert "11.8 MiB" in text


@pytest.mark.parametrize(("factor", "word"), [(0.5, "less than"), (2, "more than")])
def test_the_word_on_mixed_precision_follows_the_peaks(rows_of, build, factor, word):
    rows = rows_of["h200"].copy()
    peaks = (rows["kind"] == "peak") & (rows["precision"] == "bf16")
    fp32 = rows[(rows["kind"] == "peak") & (rows["precision"] == "fp32")]["peak_bytes"].median()
    rows.loc[peaks & (rows["status"] == "ok"), "peak_bytes"] = fp32 * factor * 4 if factor > 1 else 10**9
    text = part(build(rows), "memory_profiling (c)")
    assert f"{word} fp32" in text


def test_without_bf16_mixed_precision_is_not_spoken_of(rows_of, build):
    rows = rows_of["h200"]
    assert "memory_profiling (c)" not in build(rows[rows["precision"] == "fp32"])


def test_a_prediction_beyond_the_limit_is_explained(rows_of, build):
    assert "most of that is" not in build(rows_of["h200"])
    rows = rows_of["h200"].copy()
    off = (rows["kind"] == "peak") & (rows["context_length"] == 128) & (rows["mode"] == "inference")
    off &= rows["precision"] == "fp32"
    rows.loc[off, ["peak_bytes", "temporaries_bytes"]] += 3e9
    text = part(build(rows), "What a model of the memory predicts")
    assert re.search(r"below the measured peak; most of that is 3\.00 GB of temporaries", text)


def test_predictions_within_the_limit_are_counted(rows_of):
    found = predicted.predictions(prepared(rows_of["h200"]))
    assert found["within"] == found["cells"]
    assert found["largest"] < found["limit"]


def test_the_allocators_own_count_is_compared_where_there_is_one(rendered, rows_of, build):
    assert "to the byte" in rendered["h200"].text
    assert "caching allocator's own count" not in rendered["smoke"].text
    rows = rows_of["h200"].assign(requested_peak_bytes=rows_of["h200"]["requested_peak_bytes"] * 1.02)
    assert "to the byte" not in build(rows)


def test_a_variant_stands_beside_the_plain_cell_of_its_setting(rows_of):
    table = trade.trade(prepared(rows_of["h200"]))
    one = table.query("precision == 'bf16' and attention == 'flash' and checkpoint_every == 0").iloc[0]
    base = table.query("precision == 'bf16' and attention == 'eager' and checkpoint_every == 0").iloc[0]
    assert one["memory_ratio"] == pytest.approx(one["peak_bytes"] / base["peak_bytes"])
    assert one["time_ratio"] == pytest.approx(0.8)


def test_a_variant_whose_plain_cell_ran_out_of_memory_has_no_ratio(rows_of):
    table = trade.trade(prepared(rows_of["h200"])).query("precision == 'fp32' and context_length == 1024")
    assert list(table["status"]) == ["oom", "ok"]
    assert table["memory_ratio"].isna().all()


@pytest.mark.parametrize(("factor", "word"), [(0.5, "faster than"), (1, "as fast as"), (2, "slower than")])
def test_the_word_on_a_variants_time_follows_its_time(rows_of, build, factor, word):
    rows = rows_of["h200"].copy()
    times = (rows["kind"] == "time") & (rows["attention"] == "flash")
    plain = 1024 * factor
    rows.loc[times, ["median_ms", "q1_ms", "q3_ms"]] = [plain, plain * 0.99, plain * 1.01]
    text = part(build(rows), "Flash attention and activation checkpointing")
    assert re.search(rf"\*\*flash\*\*.*{word} it", text, re.DOTALL)


def test_others_stand_beside_ours_for_the_same_thing_only(rows_of):
    pairs = baselines.beside_ours(prepared(rows_of["h200"]))
    ours = set(ok(rows_of["h200"])["context_length"])
    assert len(pairs) > 10
    assert set(pairs["context_length"]) <= ours
    forward = pairs[pairs["mode"] == "forward"]
    assert forward[baselines.OURS["train_step"]].isna().all()
    assert forward[baselines.OURS["inference"]].notna().all()
    assert baselines.beside_ours(prepared(rows_of["smoke"])).empty


@pytest.mark.parametrize("part", ["precision == 'fp32'", "mode == 'inference'", "mode == 'train_step'"])
def test_a_part_of_a_run_renders_and_is_drawn(rows_of, tmp_path, part):
    text = section.build(rows_of["smoke"].query(part), tmp_path)
    assert "memory_profiling (b)" in text
    assert linked_figures(text, "memory") == drawn_figures(tmp_path)


def test_variants_alone_have_no_plain_cell_to_speak_of(rows_of, build):
    rows = rows_of["h200"]
    assert "No memory could be recorded" in build(rows[rows["attention"] == "flash"])


def test_a_recording_gives_a_timeline_of_many_moments(rows_of):
    timeline = rows_of["smoke"].query("kind == 'timeline'").iloc[0]
    assert len(timeline["events"]) == len(timeline["active_bytes"]) > 50
