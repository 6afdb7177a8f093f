import re

import numpy as np
import pandas as pd
import pytest

from pipeline.report import published
from pipeline.report.section import FORMS
from pipeline.report.table_rows import ok
from pipeline.stages.timing.report import baselines, compile_findings, findings, section, selection
from pipeline.stages.timing.report.selection import FIRST_STEPS

from ..sections import (
    contents,
    drawn_figures,
    faults_of_parts,
    gaps,
    linked_figures,
    numbers_that_stay,
    part,
    prose,
    render,
    template_numbers,
    unnamed_rows,
)

ALL = ("h200", "laptop", "smoke")
QUESTIONS = (
    *("benchmarking_script (a)", "benchmarking_script (b)"),
    *("benchmarking_mixed_precision (c)", "torch_compile (b)"),
)
TIMES = ["median_ms", "q1_ms", "q3_ms", "mean_ms", "std_ms", "min_ms", "max_ms"]
FIGURE_NAMES = {
    "h200": {"step_time", "precision_gain", "first_steps", "compiled", "mfu"},
    "laptop": {"step_time", "precision_gain", "first_steps", "compiled"},
    "smoke": {"step_time"},
}


@pytest.fixture(scope="module")
def rendered(make_rows, tmp_path_factory):
    return render(section.build, {name: make_rows(name) for name in ALL}, tmp_path_factory)


@pytest.fixture
def build(undrawn, tmp_path):
    return lambda rows: section.build(rows, tmp_path)


def scaled(rows, factor, mask):
    """Scale the times of some rows, and what follows from them."""
    rows = rows.astype(dict.fromkeys(TIMES, float))
    rows.loc[mask, TIMES] *= factor
    rows.loc[mask, "samples_ms"] = rows.loc[mask, "samples_ms"].map(
        lambda samples: [sample * factor for sample in samples], na_action="ignore"
    )
    return rows


def test_every_question_is_answered_under_its_name(rendered):
    headings = [line.split(":")[0] for line in rendered["h200"].text.splitlines() if line.startswith("### ")]
    for question in QUESTIONS:
        assert headings.count(f"### {question}") == 1


@pytest.mark.parametrize("name", ALL)
def test_the_section_holds_no_gap_in_its_words(rendered, name):
    _, text, _ = rendered[name]
    assert gaps(text) == []


@pytest.mark.parametrize("name", ALL)
def test_every_figure_drawn_is_linked_and_every_link_is_drawn(rendered, name):
    _, text, folder = rendered[name]
    assert linked_figures(text, "timing") == FIGURE_NAMES[name]
    assert drawn_figures(folder) == FIGURE_NAMES[name]


def test_figures_are_the_same_bytes_when_drawn_again(rendered, tmp_path):
    rows, _, folder = rendered["laptop"]
    section.build(rows, tmp_path)
    assert contents(tmp_path) == contents(folder)


def test_the_template_has_no_number_of_its_own():
    assert template_numbers(section.TEMPLATE) == []


@pytest.mark.parametrize("name", ALL)
def test_every_number_of_the_prose_is_one_that_a_finding_derived(rendered, name):
    rows, text, _ = rendered[name]
    rows = selection.ordered(rows, selection.READING_ORDER)
    context_length = selection.main_context(selection.main_grid(rows))
    by_context = (findings.passes, findings.throughput, findings.precision_gains)
    whole = (
        findings.setting,
        findings.median_errors,
        findings.variability,
        findings.growth,
        findings.warmup,
        compile_findings.compilation,
    )
    derived = [
        context_length,
        *(find(rows, context_length) for find in by_context),
        *(find(rows) for find in (*whole, findings.clocks)),
    ]
    written = {form(value) for value in _numbers_in(derived) for form in (*FORMS.values(), "{:.4g}".format)}
    names = [*rows["size"].unique(), *rows["machine"].unique(), *rows["torch"].unique()]
    sentences = re.sub("|".join(map(re.escape, names)), "", prose(text.split("### Others' figures")[0]))
    numbers = re.findall(r"\b\d+(?:,\d{3})*(?:\.\d+)?(?:×|%| ms| s\b)?", sentences)
    assert numbers
    assert set(numbers) <= written


def _numbers_in(found):
    """Walk through dicts, lists and Series to their finite numbers."""
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, list | pd.Series):
        return [number for item in found for number in _numbers_in(item)]
    return [found] if isinstance(found, int | float | np.number) and np.isfinite(found) else []


@pytest.mark.parametrize("name", ALL)
def test_a_time_of_a_pass_is_one_of_the_medians_in_the_tables(rendered, name):
    rows, text, _ = rendered[name]
    medians = {FORMS["ms"](value) for value in rows["median_ms"].dropna()}
    sentences = prose(part(text, "benchmarking_script (a)"))
    times = re.findall(r"[\d.,]+ (?:ms|s)(?= \()", sentences)
    assert times
    assert set(times) <= medians


def test_an_oom_cell_shows_as_oom_and_never_as_zero(rendered):
    _, text, _ = rendered["h200"]
    lines = [line for line in text.splitlines() if re.match(r"\| xl +\| +1024 ", line)]
    assert any(line.count("OOM") == len(section.STEP_PASSES) for line in lines)
    assert not re.search(r"\| +0(\.0*)?( ±[^|]*)? +\|", text)


def test_an_oom_cell_counts_in_no_exponent(rendered):
    rows, _, _ = rendered["h200"]
    steps = ok(selection.main_grid(rows)).query("size == 'xl' and precision == 'fp32'")
    assert sorted(steps["context_length"].unique()) == [128, 256, 512]
    fp32 = next(entry for entry in findings.growth(rows) if entry["precision"] == "fp32")
    assert 0.8 < fp32["exponents"]["xl"] < 1.5


def test_a_precision_that_was_skipped_is_named_once_with_its_reason(rendered):
    _, text, _ = rendered["laptop"]
    head, missing = text.split("### What was not measured, or not well")
    assert "tf32" not in head
    assert "no CUDA GPU" in missing


@pytest.mark.parametrize(("size", "said"), [("small", True), ("nano", False)])
def test_nothing_unstable_is_quoted_without_saying_so(make_rows, build, size, said):
    rows = make_rows("h200")
    rows = rows[rows["phase"] != "compile"]
    texts = [build(rows.assign(status=rows["status"].replace("ok", status))) for status in ("ok", "unstable")]
    names = "|".join(rows["size"].unique())
    plain, marked = (re.findall(rf" \((?:{names})\)", prose(text)) for text in texts)
    assert plain
    assert marked == []
    assert (f"({size}, unstable)" in texts[1]) is said


def test_how_well_the_medians_are_known_is_told_by_their_errors(make_rows, build):
    rows = make_rows("h200")
    steps = rows.groupby(["size", "precision"]).ngroup() % 2 == 0
    rows = rows.assign(n=steps.map({True: 50, False: 20}), rel_error=0.002)
    rows.loc[ok(selection.main_grid(selection.host(rows))).index[:3], "rel_error"] = 0.08
    text = prose(build(rows)).replace("\n ", "")
    share = FORMS["percent"](steps[ok(selection.main_grid(rows)).index].mean())
    assert f"20 to 50 measured: until the medians were known well enough, 50 were taken (as for {share} of the" in text
    assert "or 4.00 s had passed" in text
    assert "typically 0.20% of it, for nine in ten figures at most 0.20%, for the least certain 8.0%" in text


def test_the_spread_is_small_only_where_it_is_for_nearly_all(make_rows, build):
    rows = make_rows("h200")
    large = rows.assign(std_ms=rows["std_ms"].mask(rows["precision"] == "bf16", 0.2 * rows["mean_ms"]))
    assert "The spread between steps is small" in build(rows)
    text = prose(build(large))
    assert "is small" not in text
    assert "above\n5.0% of the mean for 100% of the figures in bf16." in text
    assert findings.variability(large)["largest"] == pytest.approx(0.2)


def test_a_finding_on_precision_names_its_setting(rendered):
    first_page = rendered["h200"].text.split("<!-- end of findings -->")[0]
    assert "- For a train step (batch size 4, context length 256) fp32 takes\n" in first_page
    assert "- An eager train step (batch size 4) takes\n" in first_page
    assert first_page.count("the time of one with `torch.compile` in fp32 (context length 256)") == 1


def test_an_unstable_cell_keeps_its_figure(rendered):
    _, text, _ = rendered["h200"]
    assert re.search(r"\| small +\| +128 \| .* ± .* \(unstable\)", text)


def test_ratios_of_passes_are_those_of_their_medians(make_rows):
    rows = make_rows("h200")
    medians_ms = {"forward": 2.0, "backward": 3.0, "optimizer": 1.0, "train_step": 8.0}
    for entry in findings.passes(rows.assign(median_ms=rows["phase"].map(medians_ms)), 256):
        assert set(entry["backward_over_forward"]) == {3 / 2}
        assert set(entry["optimizer_share"]) == {1 / 8}


@pytest.mark.parametrize(
    ("factor", "word"), [(0.1, "faster than fp32's"), (1, "as fast as fp32's"), (10, "slower than fp32's")]
)
def test_the_word_on_lower_precision_follows_the_times(rendered, build, factor, word):
    rows, _, _ = rendered["laptop"]
    text = part(build(scaled(rows, factor, rows["precision"] == "bf16")), "benchmarking_mixed_precision (c)")
    assert word in text


def test_times_apart_by_less_than_their_noise_are_not_compared(rendered, build):
    rows, _, _ = rendered["laptop"]
    noisy = scaled(rows, 0.7, rows["precision"] == "bf16").assign(q1_ms=rows["q1_ms"] / 2, q3_ms=rows["q3_ms"] * 2)
    text = part(build(noisy), "benchmarking_mixed_precision (c)")
    assert "not told apart from fp32's" in text
    assert "As models grow" not in text


@pytest.mark.parametrize(("factor", "word"), [(0.5, "faster than eager"), (2, "slower than eager")])
def test_the_word_on_compiling_follows_the_times(rendered, build, factor, word):
    rows, _, _ = rendered["laptop"]
    compiled = (rows["mode"] == "compiled") & (rows["phase"] != "compile") & (rows["status"] == "ok")
    text = part(build(scaled(rows, factor, compiled)), "torch_compile (b)")
    assert word in text
    assert ("paid back after" in prose(text)) == (factor < 1)
    assert ("never" in text) == (factor > 1)


def test_compiling_is_paid_back_after_its_time_over_the_time_saved(rendered):
    rows, _, _ = rendered["h200"]
    back = compile_findings.payback(rows)
    assert ((back["steps"] - 1) * back["saved_ms"] < back["compile_ms"]).all()
    assert (back["steps"] * back["saved_ms"] >= back["compile_ms"]).all()


def test_a_cold_start_is_the_first_step_of_the_phases_together(rendered):
    rows, _, _ = rendered["laptop"]
    cold = rows.query("warmup_steps == 0 and precision == 'fp32' and `phase` in ('forward', 'backward', 'optimizer')")
    first_ms = sum(samples[0] for samples in cold["samples_ms"])
    steps = selection.first_steps(rows).query("warmup_steps == 0")
    assert steps["step_ms"].iloc[0] == pytest.approx(first_ms)
    assert len(steps) == FIRST_STEPS


def with_samples(rows, mask, change):
    """Change the samples, a list, of each phase of some rows."""
    rows = rows.copy()
    samples = rows.loc[mask & rows["phase"].isin(selection.PHASES), "samples_ms"]
    rows.loc[samples.index, "samples_ms"] = pd.Series(map(change, map(list, samples)), samples.index)
    return rows


def without_slow_starts(rows, warmup_steps, besides):
    """Let the first steps be like the last ones, but for one size."""
    mask = (rows["warmup_steps"] == warmup_steps) & (rows["size"] != besides) & (rows["mode"] == "eager")
    return with_samples(rows, mask, lambda samples: [*samples[-2:], *samples[2:]])


def test_a_slow_first_step_is_told_of_the_sizes_that_have_one(make_rows, build):
    text = prose(part(build(without_slow_starts(make_rows("h200"), 1, besides="small")), "benchmarking_script (b)"))
    after_one = text.split("- After 1 warm-up step")[1].split("- After")[0]
    assert "still slower for small, perhaps because" in after_one
    assert "no slower than a warm one, within the noise, for medium, large, xl and 2.7B." in after_one


def test_a_first_step_within_the_noise_of_its_own_size_is_not_slow(make_rows):
    rows = without_slow_starts(make_rows("h200"), 1, besides="small")
    is_warm = (rows["warmup_steps"] == 5) & (rows["size"] == "small") & (rows["mode"] == "eager")
    noisy = with_samples(
        rows, is_warm, lambda samples: [sample * (0.4, 1.6)[at % 2] for at, sample in enumerate(samples)]
    )
    slow = [findings.warmup(found)["between"][0]["slow_sizes"] for found in (rows, noisy)]
    assert slow == [["small"], []]


def test_a_cold_start_without_its_first_step_has_the_mean_of_the_others(rendered, build):
    rows, _, _ = rendered["laptop"]
    is_cold = (rows["warmup_steps"] == 0) & (rows["precision"] == "fp32")
    slow = with_samples(rows, is_cold, lambda samples: [100 * samples[-1], *[7 * samples[-1]] * 9])
    warm_ms, last_ms = (
        selection.first_steps(found).query(f"warmup_steps == {count}")["step_ms"]
        for found, count in ((rows, 5), (rows, 0))
    )
    expected = FORMS["ratio"](7 * last_ms.iloc[-1] / warm_ms.median())
    assert f"without the first of them {expected} (nano)" in prose(build(slow)).replace("\n", " ")


def test_a_cold_start_that_costs_nothing_is_not_explained(rendered, build):
    rows, text, _ = rendered["laptop"]
    warm = rows.query("warmup_steps == 5 and mode == 'eager'")
    even = pd.concat([rows[rows["warmup_steps"] != 0], warm.assign(warmup_steps=0)])
    assert "A first step pays for" in text
    assert "A first step pays for" not in build(even)


@pytest.mark.parametrize(
    ("left_out", "title"),
    [
        ("mode == 'compiled'", "torch_compile (b)"),
        ("warmup_steps == 0", "benchmarking_script (b)"),
        ("precision == 'bf16'", "benchmarking_mixed_precision (c)"),
        ("precision == 'fp32'", "benchmarking_mixed_precision (c)"),
    ],
)
def test_a_part_without_its_data_is_not_printed(rendered, build, left_out, title):
    rows, text, _ = rendered["laptop"]
    assert f"### {title}" in text
    assert f"### {title}" not in build(rows.query(f"not ({left_out})"))


def test_one_context_length_gives_no_growth(rendered):
    assert "exponent" in rendered["laptop"][1]
    assert "exponent" not in rendered["smoke"][1]


def test_nothing_measured_gives_the_reasons_alone(rendered, build):
    rows, _, _ = rendered["laptop"]
    text = build(rows[rows["status"] == "skipped"])
    assert "No training step could be timed" in text
    assert "no CUDA GPU" in text
    assert "![" not in text


def test_the_host_clock_and_the_events_are_compared_where_both_ran(rendered):
    assert "CUDA events, read beside" in rendered["h200"][1]
    assert "CUDA events" not in rendered["laptop"][1]


@pytest.mark.parametrize(("events_ms", "word"), [(3.0, "longer"), (5.0, "shorter")])
def test_the_word_on_the_clocks_is_that_of_the_hosts(make_rows, events_ms, word):
    rows = make_rows("h200")
    found = findings.clocks(rows.assign(median_ms=rows["clock"].map({"host": 4.0, "cuda_events": events_ms})))
    assert (found["word"], found["largest"]) == (word, 1 / 4)


def test_others_stand_beside_ours_for_the_same_thing_only(rendered):
    rows, _, _ = rendered["h200"]
    pairs = baselines.beside_ours(rows, context_length=256)
    pair = pairs.query(
        "write_up == 'write-up 1 (device not named)' and size == 'xl' and context_length == 512"
        " and precision == 'fp32' and `phase` == 'forward'"
    )
    assert list(pair["theirs_ms"]) == [pytest.approx(580.613)]
    assert list(pair["assumed"]) == [""]
    assert set(pairs["write_up"].str[:10]) == {f"write-up {number}" for number in range(5)}


def test_their_forward_and_backward_stands_beside_the_sum_of_ours(rendered):
    rows, text, _ = rendered["h200"]
    pairs = baselines.beside_ours(rows, context_length=256).query("size == 'small' and precision == 'fp32'")
    ours = pairs.query("context_length == 256 and mode == 'eager'").groupby("phase")["ours_ms"].first()
    assert ours["forward_backward"] == pytest.approx(ours["forward"] + ours["backward"])
    assert "forward + backward (ours: sum)" in text


def test_a_guess_is_called_ours_where_it_was_made_for_the_comparison_alone(rendered):
    text = rendered["h200"].text
    lines = [
        line for line in text.splitlines() if line.startswith(("| source", "| write-up 0 (H100)", "| write-up 1 ("))
    ]
    cells = [line.strip("| ").split("|")[-1].strip() for line in lines]
    assert list(dict.fromkeys(cells)) == ["guessed for this comparison", "context, precision", "–"]
    assert published.load("timing").query("source.str.startswith('001')")["note"].str.contains("not printed").any()
    assert "A guess that the transcript itself makes stands among the doubts" in text


def test_our_unstable_figures_beside_others_say_so(make_rows):
    rows = make_rows("h200").replace({"status": {"unstable": "ok"}})
    of_it = (rows["size"] == "xl") & (rows["phase"] == "backward") & (rows["context_length"] == 256)
    pairs = baselines.beside_ours(rows.assign(status=rows["status"].mask(of_it, "unstable")), context_length=256)
    unstable = pairs[pairs["status"] == "unstable"]
    assert set(unstable["phase"]) == {"backward", "forward_backward"}
    assert set(unstable["size"]) == {"xl"}
    assert sum(table.count("(unstable)") for table in baselines.full_tables(pairs)) == 2 * len(unstable)


def test_sizes_that_nobody_else_measured_are_compared_with_nobody(rendered):
    assert "Others' figures" not in rendered["laptop"][1]


def test_what_was_compiled_but_not_run_eagerly_has_neither_words_nor_figure(make_rows, build, tmp_path):
    rows = make_rows("h200")
    text = build(rows[(rows["mode"] == "compiled") == (rows["precision"] == "bf16")])
    assert "### torch_compile (b)" not in text
    assert linked_figures(text, "timing") == drawn_figures(tmp_path)


def test_the_section_of_a_part_of_the_cells_is_whole(make_rows, tmp_path_factory):
    assert faults_of_parts(section.build, "timing", make_rows("h200"), tmp_path_factory) == {}


@pytest.mark.parametrize("name", ALL)
def test_the_columns_of_rows_tell_the_rows_of_a_cell_apart(make_rows, name):
    assert unnamed_rows("timing", make_rows(name)).empty


@pytest.mark.parametrize("name", ALL)
def test_no_number_of_the_prose_stays_when_every_figure_is_another(make_rows, build, monkeypatch, name):
    monkeypatch.setattr(section, "draw_all", lambda *_: dict.fromkeys(FIGURE_NAMES["h200"], ""))
    keys = [
        "size",
        "context_length",
        "warmup_steps",
        "setting_batch_size",
        "n",
        "setting_max_steps",
        "setting_budget_s",
    ]
    ours = lambda rows: build(rows).split("### Others' figures")[0]  # noqa: E731
    limit_pct = f"{100 * findings.SMALL_SPREAD:g}"  # of what is called a small spread
    assert numbers_that_stay(ours, make_rows(name), keys, allowed={limit_pct}) == set()
