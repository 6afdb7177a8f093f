import re

import numpy as np
import pandas as pd
import pytest

from pipeline.formulas.buckets import best_bucket_bytes
from pipeline.formulas.collectives import LinearCost
from pipeline.report.section import FORMS, listing
from pipeline.stages.ddp.report import baselines, bucket_model, findings, section, selection
from pipeline.stages.ddp.report.figures import timeline

from ..sections import drawn_figures, faults_of_parts, gaps, keys, linked_figures, numbers_that_stay, part, unnamed_rows

TIMES = ["median_ms", "q1_ms", "q3_ms", "mean_ms", "std_ms", "min_ms", "max_ms"]
NOTHING = pd.DataFrame()
KEYS = keys("ddp", "status", "backend", "weight_tolerance", "all_reduces", "n")


@pytest.fixture
def build(monkeypatch, tmp_path, allreduce):
    """Build the section without its figures, which take the time."""
    links = {name: f"figures/ddp/{name}.svg" for name in ("steps", "buckets", "timeline")}
    monkeypatch.setattr(section, "draw_all", lambda *_: links)
    return lambda rows, beside=allreduce: section.build(rows, tmp_path, {"allreduce": beside})


def scaled(rows, factor, mask):
    rows = rows.astype(dict.fromkeys(TIMES, float))
    rows.loc[mask, TIMES] *= factor
    return rows


@pytest.mark.parametrize("name", ["h200", "small_gpu", "smoke", "skipped"])
def test_the_section_holds_no_gap_in_its_words(request, build, name):
    text = build(request.getfixturevalue(name))
    assert gaps(text) == []


@pytest.mark.parametrize("name", ["h200", "small_gpu", "smoke"])
def test_every_figure_drawn_is_linked_and_every_link_is_drawn(request, allreduce, tmp_path, name):
    text = section.build(request.getfixturevalue(name), tmp_path, {"allreduce": allreduce})
    assert linked_figures(text, "ddp") == drawn_figures(tmp_path) == {"steps", "buckets", "timeline"}


def test_no_number_of_the_prose_stays_when_the_tables_change(h200, build):
    # 0: rank 0, and weights that do not differ; 2 and 1024: formulas, the size of a MB.
    allowed = {"0", "2", "1024"}
    assert numbers_that_stay(lambda rows: build(rows).split("### Others'")[0], h200, KEYS, allowed) == set()


def test_the_section_of_a_part_of_the_cells_is_whole(h200, allreduce, tmp_path_factory):
    build = lambda rows, folder: section.build(rows, folder, {"allreduce": allreduce})  # noqa: E731
    assert faults_of_parts(build, "ddp", h200, tmp_path_factory) == {}


@pytest.mark.parametrize("name", ["h200", "small_gpu", "smoke", "skipped"])
def test_the_columns_of_rows_tell_the_rows_of_a_cell_apart(request, name):
    assert unnamed_rows("ddp", request.getfixturevalue(name)).empty


@pytest.mark.parametrize(("factor", "word"), [(0.5, "faster than"), (1, "as fast as"), (2, "slower than")])
def test_the_word_on_the_flat_variant_follows_the_times(h200, build, factor, word):
    naive, flat = h200["impl"] == "naive", h200["impl"] == "flat"
    rows = h200.astype(dict.fromkeys(TIMES, float))
    rows.loc[flat, TIMES] = rows.loc[naive, TIMES].to_numpy() * factor
    assert f"It is {word} the naive variant" in part(build(rows), "minimal_ddp_flat_benchmarking")


def test_times_apart_by_less_than_their_noise_are_not_compared(h200, build):
    noisy = h200.assign(q1_ms=h200["q1_ms"] / 2, q3_ms=h200["q3_ms"] * 2)
    assert "It is not told apart from the naive variant" in part(build(noisy), "minimal_ddp_flat_benchmarking")


@pytest.mark.parametrize(("factor", "word"), [(0.9, "faster than"), (1, "as fast as"), (1.1, "slower than")])
def test_the_best_of_ours_is_held_against_the_best_of_torchs(h200, build, factor, word):
    ours = ~h200["impl"].isin(["none", "torch"])
    assert f"it is {word} the best of PyTorch's" in build(scaled(h200, factor, ours))


def test_weights_that_differ_are_said_to(h200, build):
    agreed = part(build(h200), "naive_ddp")
    assert "10 variants agree" in agreed
    assert "do not agree" not in agreed
    apart = h200.copy()
    apart.loc[apart["impl"] == "overlap", "variant_difference"] = 0.01
    assert "do not agree" in part(build(apart), "naive_ddp")
    told = findings.by_cell(selection.completed(apart))[0]["weights"]
    assert (told["between_variants"], told["worst"]) == (0.01, "overlap")
    ranks_apart = h200.copy()
    ranks_apart.loc[ranks_apart["impl"] == "flat", "rank_difference"] = 1e-9
    assert "do not agree" in part(build(ranks_apart), "naive_ddp")


def test_the_communication_share_is_that_of_the_step(h200):
    rows = selection.completed(h200)
    times = selection.medians(rows[rows["precision"] == "bf16"]).loc["naive"]
    assert times["communication"] / times["train_step"] == pytest.approx(0.207, abs=0.01)


def test_the_overhead_is_what_goes_beyond_no_communication(h200):
    rows = selection.completed(h200)
    whole = selection.steps(rows[rows["precision"] == "fp32"]).set_index("variant")
    beyond = findings.overheads(whole)
    assert beyond["flat"] == pytest.approx(whole["median_ms"]["flat"] - whole["median_ms"]["no communication"])
    assert "no communication" not in beyond
    assert findings.overheads(whole.drop(index="no communication")).empty


def test_bucket_sizes_that_lose_are_named_where_they_lose(h200, build):
    assert "So large buckets lose, as expected, and small ones do not" in build(h200)
    small_loses = scaled(h200, 1.2, h200["bucket_size_mb"] == 1)
    assert "So both ends lose, as expected" in build(small_loses)


def test_sizes_with_the_same_buckets_are_not_compared(smoke, build):
    assert "all sizes give the same number of buckets here, 1" in build(smoke)


def test_the_fit_and_its_optimum_are_those_that_made_the_steps(h200, allreduce):
    rows = selection.completed(h200)
    fitted = bucket_model.fits(rows[rows["precision"] == "bf16"], allreduce)
    assert list(fitted["timing"]) == ["burst", "single"]
    assert fitted["call_overhead_us"].to_numpy() == pytest.approx(40, rel=1e-3)
    assert fitted["gb_per_s"].to_numpy() == pytest.approx(320, rel=1e-3)
    expected = best_bucket_bytes(h200["gradient_bytes"].max(), LinearCost(40e-6, 320e9)) / 2**20
    assert fitted["bucket_mb"].to_numpy() == pytest.approx(expected, rel=1e-3)


def test_the_model_with_the_measured_backward_predicts_steps_that_it_made(h200, allreduce):
    rows = selection.completed(h200)
    bf16 = rows[rows["precision"] == "bf16"]
    table = bucket_model.beside_measured(bf16, bucket_model.fits(bf16, allreduce)["cost"].iloc[0])
    assert list(table["bucket_size_mb"]) == [1, 10, 100, 1000]
    assert table["pipelined_ms"].to_numpy() == pytest.approx(table["measured_ms"].to_numpy(), abs=0.5)


def test_a_fit_without_overhead_has_no_optimum(h200, build, allreduce):
    # A microsecond less than proportional: a line through such times would begin below zero.
    text = build(h200, allreduce.assign(median_ms=1e3 * allreduce["size_bytes"] / 320e9 - 1e-3))
    assert "The fit has no overhead a call" in text
    assert "Its optimum" not in text


@pytest.mark.parametrize("beside", ["missing", "other_backend", "skipped"])
def test_without_a_measured_all_reduce_there_is_no_model(h200, build, allreduce, beside):
    rows = {
        "missing": NOTHING,
        "other_backend": allreduce.query("backend == 'gloo'"),
        "skipped": pd.DataFrame([{"backend": "nccl", "world_size": 2, "status": "skipped", "reason": "no GPU"}]),
    }[beside]
    text = build(h200, rows)
    assert "There is no measured all-reduce" in text
    assert "overhead(n) = n·o + s / (n·w)" in text


def test_what_has_no_memory_shows_as_oom_and_is_left_out_of_comparisons(small_gpu, build):
    text = build(small_gpu)
    assert re.search(r"\| fp32 +\| flat +\| +OOM \|", text)
    assert "minimal_ddp_flat_benchmarking\n\n###" in text
    assert "CUDA out of memory" in part(text, "What was not measured, or not well")


def test_a_machine_with_one_gpu_gets_the_reason_alone(skipped, build):
    text = build(skipped, NOTHING)
    assert "No data-parallel step could be timed" in text
    assert text.count("needs 2 GPUs, 1 present") == 1
    assert "![" not in text


def test_a_skipped_cell_stands_beside_a_measured_one(h200, skipped, build):
    reasons = {"precision": "fp32", "world_size": 8, "reason": "needs 8 GPUs, 2 present"}
    text = build(pd.concat([h200, skipped.assign(**reasons)], ignore_index=True))
    assert "bf16, 2 ranks" in text
    assert "fp32, 8 ranks" in part(text, "What was not measured, or not well")


def test_a_captured_share_is_given_where_it_was_captured(h200, build):
    title = "ddp_overlap_individual_parameters, ddp_overlap_individual_parameters_benchmarking"
    assert "of the communication runs beside computation" in part(build(h200), title)
    without = h200[h200["phase"] != "captured_step"]
    assert "In a captured step" not in build(without)
    assert timeline(selection.completed(without)) is None


def test_what_is_left_after_backward_was_not_hidden(h200):
    rows = selection.completed(h200).query("precision == 'bf16'")
    transfer_ms = 1e3 * 7.99e9 / 320e9  # of all gradients
    left_ms = selection.medians(rows)["communication"]
    shares = findings.hidden(rows)
    assert shares["naive"] == pytest.approx(0, abs=1e-9)
    assert shares["overlap"] == pytest.approx(1 - left_ms["overlap"] / transfer_ms, rel=0.01)


def test_the_gradients_are_given_in_the_unit_of_buckets(h200):
    assert findings.setting(selection.completed(h200))["gradient_mb"] == pytest.approx(7.99e9 / 2**20)


def test_the_clocks_differ_by_the_largest_difference_of_any_step(h200):
    rows = selection.completed(h200)
    one = (rows["variant"] == "flat") & (rows["phase"] == "train_step") & (rows["clock"] == "cuda_events")
    apart = rows.assign(median_ms=rows["median_ms"].mask(one, rows["median_ms"] / 2))
    assert findings.clocks(apart) == pytest.approx(1 / 2, abs=0.01)


@pytest.mark.parametrize(("computing", "is_said"), [(1.0, False), (1.05, True)])
def test_what_communication_takes_from_computing_is_said_where_it_is_most_of_the_cost(h200, build, computing, is_said):
    rows = h200.copy()
    beside = (rows["phase"] == "captured_step") & (rows["impl"] == "overlap")
    alone = (rows["phase"] == "captured_step") & (rows["impl"] == "naive")
    for precision in rows["precision"].unique():
        here = rows["precision"] == precision
        rows.loc[beside & here, "computation_ms"] = computing * rows.loc[alone & here, "computation_ms"].iloc[0]
    assert ("longer beside communication" in build(rows)) == is_said


def test_a_capture_without_communication_has_no_share(h200, build):
    silent = h200.assign(communication_ms=h200["communication_ms"] * 0, hidden_pct=np.nan)
    text = build(silent)
    assert "In a captured step" not in text
    assert "nan" not in text
    assert timeline(selection.completed(silent)) is None


def test_a_cpu_is_not_said_to_win_by_hiding(smoke, h200, build):
    assert "compete for the same cores" in build(smoke)
    assert "compete for the same cores" not in build(h200)


def test_others_stand_beside_the_same_variant_model_and_ranks(h200, smoke):
    theirs = baselines.theirs()
    assert set(theirs["ours"]) >= {"naive", "flat", "overlap", "bucketed 10 MB", ""}
    ours = selection.completed(h200)
    median = selection.steps(ours).query("variant == 'overlap' and precision == 'bf16'")["median_ms"].item()
    line = next(line for line in baselines.beside_ours(ours).splitlines() if "overlap per parameter" in line)
    assert f"{median:.0f} (bf16)" in line
    small = baselines.beside_ours(selection.completed(smoke))
    assert "(fp32)" not in small


def test_medians_in_sentences_are_those_of_the_table(h200, build):
    rows = selection.completed(h200)
    known = {FORMS["ms"](value) for value in rows["median_ms"].dropna()}
    sentences = part(build(h200), "naive_ddp_benchmarking")
    found = re.findall(r"[\d.,]+ (?:ms|s)\b", sentences)
    assert found
    assert set(found) <= known


def first_page(text):
    return text.split("<!-- findings -->")[1].split("<!-- end of findings -->")[0]


@pytest.mark.parametrize(("factor", "word"), [(1, "faster than"), (2, "slower than")])
def test_the_first_page_tells_what_overlap_gains_or_costs(h200, build, factor, word):
    first = first_page(build(scaled(h200, factor, h200["impl"] == "overlap")))
    assert "the fastest way here to average gradients is" in first
    assert first.count(f"starts each all-reduce during backward is {word} one that starts them after it") == 2


def test_the_first_page_names_what_is_as_fast_as_the_best(h200, build):
    best = findings.by_cell(selection.completed(h200))[0]["best"]
    assert best["level"]
    assert f"by the noise: {listing(best['level'])}." in first_page(build(h200))


def test_overheads_above_every_model_are_said_to_be(h200, build):
    assert "is above both models'" not in build(h200)
    baselines = (h200["impl"] != "none") & (h200["phase"] == "train_step")
    assert build(scaled(h200, 1.5, baselines)).count("is above both models'") == 2


def test_buckets_slower_than_as_many_calls_without_any_cost_more_than_calls(h200, build):
    slow = scaled(h200, 3, (h200["impl"] == "bucketed") & (h200["bucket_size_mb"] == 1))
    calls = h200.loc[h200["impl"] == "overlap", "all_reduces"].max()
    assert f"overlap makes {calls:.0f}, no fewer than bucketed 1 MB" in build(slow)
    assert "The number of calls is not all" not in build(scaled(h200, 3, h200["impl"] == "overlap"))
