import re

import pandas as pd
import pytest

from pipeline.formulas.buckets import best_bucket_bytes
from pipeline.formulas.collectives import LinearCost
from pipeline.report.intervals import RepeatSpread
from pipeline.report.page_parts import Figure, Table
from pipeline.stages.ddp.report import baselines, facts, section

from ..sections import built, contents, gaps, thrice

TIMES = ["median_ms", "q1_ms", "q3_ms", "mean_ms", "std_ms", "min_ms", "max_ms"]
NOTHING = pd.DataFrame()


@pytest.fixture
def build(allreduce):
    return lambda rows, beside=allreduce: section.build(rows, {"allreduce": beside})


@pytest.fixture
def text(undrawn, allreduce, tmp_path):
    return lambda rows: built(section.build, "ddp")(rows, tmp_path, {"allreduce": allreduce})


def scaled(rows, factor, mask):
    rows = rows.astype(dict.fromkeys(TIMES, float))
    rows.loc[mask, TIMES] *= factor
    return rows


def problem(built_section, name):
    return next((item.answer for item in built_section.problems if item.name == name), "")


def actions(built_section):
    return " ".join(f"{action.what} {action.why}" for action in built_section.actions)


@pytest.mark.parametrize("name", ["h200", "small_gpu", "smoke", "skipped"])
def test_the_section_holds_no_gap_in_its_words(request, text, name):
    assert gaps(text(request.getfixturevalue(name))) == []


@pytest.mark.parametrize("name", ["h200", "small_gpu", "smoke"])
def test_a_figure_and_a_short_table_are_shown(request, build, name):
    parts = build(request.getfixturevalue(name)).parts
    assert [part.name for part in parts if isinstance(part, Figure)] == ["buckets"]
    assert [len(part.cells) for part in parts if isinstance(part, Table)] == [12]


def test_columns_name_the_precision_and_the_title_the_batches(h200, build):
    larger = h200["precision"] == "bf16"
    rows = h200.assign(context_length=h200["context_length"].mask(larger, 1024))
    table = next(part for part in build(rows).parts if isinstance(part, Table))
    assert list(table.cells)[1:5] == ["fp32, step (ms)", "fp32, added (ms)", "bf16, step (ms)", "bf16, added (ms)"]
    assert "(batch 2 a rank, context 512) and" in table.title
    assert "(batch 2 a rank, context 1024), and" in table.title


def test_the_section_of_cells_with_repeats_is_whole(h200, text):
    assert gaps(text(thrice("ddp", h200))) == []


def test_drawn_twice_the_section_has_the_same_bytes(smoke, allreduce, tmp_path):
    texts = [built(section.build, "ddp")(smoke, tmp_path / name, {"allreduce": allreduce}) for name in ("a", "b")]
    assert texts[0] == texts[1]
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_the_answer_names_the_fastest_of_ours_and_of_torchs(h200, build):
    fp32, bf16 = facts.runs(h200)
    assert (fp32.name, bf16.name) == ("fp32", "bf16")
    fastest = scaled(h200, 0.9, (h200["impl"] == "overlap") | (h200["bucket_size_mb"] == 25))
    for verdict in (build(fastest).answer, build(fastest).parts[0]):
        assert "a step with overlap" in verdict
        assert "with buckets of 25 MB" in verdict


def test_the_overhead_is_what_goes_beyond_no_communication(h200):
    run = facts.runs(h200)[0]
    steps_ms = run.steps["median_ms"]
    assert run.beyond_ms["flat"] == pytest.approx(steps_ms["flat"] - steps_ms["no communication"])
    assert "no communication" not in run.beyond_ms
    without = facts.runs(h200[h200["impl"] != "none"])[0]
    assert without.beyond_ms.empty


def test_beside_no_communication_stands_a_share_and_where_there_are_repeats_a_verdict(h200, build):
    assert "more than without communication" in build(h200).parts[0]
    judged = h200.assign(samples_of_repeats=[[[1.0] * 10] * 3] * len(h200), repeat_spread=RepeatSpread(0.01, 4))
    assert "not distinguishable from without communication" in build(judged).answer
    close = judged.assign(repeat_spread=RepeatSpread(0.0001, 4))
    assert "the same within 2% as without communication" in build(close).answer


def test_peaks_that_differ_between_repeats_are_told_by_their_ends(h200, build):
    ends = h200.assign(least_peak_bytes=42.83e9, most_peak_bytes=42.83e9)
    ends.loc[ends["impl"] == "torch_tuned", "most_peak_bytes"] = 50.89e9
    table = next(part for part in build(ends).parts if isinstance(part, Table))
    peaks = table.cells.set_index("variant")["peak (GB)"]
    assert (peaks["torch DDP tuned 25 MB"], peaks["flat"]) == ("42.8 to 50.9", "42.8")


def test_an_unstable_step_is_not_compared(h200, build):
    unstable = h200.assign(status=h200["status"].replace("ok", "unstable"))
    assert not re.search(r"more than|less than|not distinguishable", build(unstable).answer)


def test_a_gpu_that_idles_makes_the_host_the_limit(h200, smoke, build):
    assert "host" not in build(h200).answer
    idle = h200.assign(computation_ms=h200["computation_ms"] / 2)
    for verdict in (build(idle).answer, build(idle).parts[0]):
        assert "where the host limits the step (the GPU idles" in verdict
    # On a CPU there is no GPU to idle.
    assert "GPU" not in str(build(smoke))


def test_larger_buckets_are_advised_where_they_clearly_win(h200, build):
    assert "bucket_cap_mb" not in actions(build(h200))
    wins = scaled(h200, 0.8, (h200["impl"] == "torch") & (h200["bucket_size_mb"] == 100))
    assert actions(build(wins)).count("**Set DDP's `bucket_cap_mb` to 100.**") == 1
    assert "limits this step" not in actions(build(wins))
    in_bf16 = wins["precision"] == "bf16"
    idle = wins.assign(computation_ms=wins["computation_ms"].mask(in_bf16, wins["computation_ms"] / 2))
    assert "limits this step; in fp32, where the GPU does, it takes" in actions(build(idle))
    noisy = wins.assign(q1_ms=wins["q1_ms"] / 2, q3_ms=wins["q3_ms"] * 2)
    unstable = wins.assign(status="unstable")
    same_buckets = wins.assign(all_reduces=1)
    for rows in (noisy, unstable, same_buckets):
        assert "bucket_cap_mb" not in actions(build(rows))


def test_averaging_less_often_is_advised_where_even_the_best_costs_much(h200, build):
    assert "Average gradients less often" not in actions(build(h200))
    slow = scaled(h200, 1.3, (h200["impl"] != "none") & (h200["precision"] == "bf16"))
    said = actions(build(slow))
    assert "Average gradients less often" in said
    assert "a step of xl in bf16 on 2 ranks" in said
    assert "(fp32, " not in said


def test_weights_that_differ_are_said_to(h200, build):
    agreed = problem(build(h200), "naive_ddp")
    assert agreed.startswith("fp32 and bf16: the weights of 11 variants agree")
    apart, ranks_apart = h200.copy(), h200.copy()
    apart.loc[apart["impl"] == "overlap", "variant_difference"] = 0.01
    ranks_apart.loc[ranks_apart["impl"] == "flat", "rank_difference"] = 1e-9
    for rows in (apart, ranks_apart):
        assert problem(build(rows), "naive_ddp").count("**do not agree**") == 2


def test_medians_in_answers_are_those_of_the_table(h200, build):
    run = facts.runs(h200)[1]
    said = problem(build(h200), "naive_ddp_benchmarking")
    step_ms, left_ms = run.steps.loc["naive", "median_ms"], run.left.loc["naive", "median_ms"]
    assert f"bf16: a step takes {step_ms:.0f} ms, {left_ms:.1f} ms of it (" in said


def test_sizes_with_the_same_buckets_are_not_compared(smoke, h200, build):
    assert "every size gives the same 1 all-reduce" in problem(build(smoke), "ddp_bucketed_benchmarking (a)")
    slow = scaled(h200, 1.5, h200["bucket_size_mb"] == 10)
    assert problem(build(slow), "ddp_bucketed_benchmarking (a)").count("the least time, bucketed 10 MB (") == 2


def test_a_difference_between_sizes_with_the_same_buckets_is_called_noise(h200, build):
    rows = scaled(h200, 1.5, h200["bucket_size_mb"] == 1000)
    assert "noise" not in problem(build(rows), "ddp_bucketed_benchmarking (a)")
    of_ours = rows["impl"] == "bucketed"
    rows.loc[of_ours & rows["bucket_size_mb"].isin([10, 100, 1000]), "all_reduces"] = 1
    rows = scaled(rows, 0.5, of_ours & (rows["bucket_size_mb"] == 10))
    said = problem(build(rows), "ddp_bucketed_benchmarking (a)")
    assert said.count("bucketed 1000 MB") == said.count("that difference is noise") == 2


def test_answers_mark_unstable_steps(h200, build):
    names = ["naive_ddp_benchmarking", "minimal_ddp_flat_benchmarking", "ddp_bucketed_benchmarking (a)"]
    assert not any("unstable" in problem(build(h200), name) for name in names)
    unstable = h200.assign(status=h200["status"].replace("ok", "unstable"))
    assert all("(unstable" in problem(build(unstable), name) for name in names)


def test_an_optimum_beyond_all_gradients_is_one_bucket(h200, build):
    name = "ddp_bucketed_benchmarking (b)"
    assert "in one bucket" not in problem(build(h200), name)
    assert "2.00 MB, all of them in one bucket; of those measured 1 MB take the least time." in problem(
        build(h200.assign(gradient_bytes=2 * 2**20)), name
    )


def test_the_fit_and_its_optimum_are_those_that_made_the_steps(h200, build, allreduce):
    cost = facts.all_reduce_cost(facts.runs(h200)[0], allreduce)
    assert cost.latency_s == pytest.approx(40e-6, rel=1e-3)
    assert cost.bytes_per_s == pytest.approx(320e9, rel=1e-3)
    best_mb = best_bucket_bytes(h200["gradient_bytes"].max(), LinearCost(40e-6, 320e9)) / 2**20
    told = re.search(r"all-reduces\): ([\d.]+) MB", problem(build(h200), "ddp_bucketed_benchmarking (b)"))
    assert float(told[1]) == pytest.approx(best_mb, rel=0.01)


def test_a_fit_without_overhead_has_no_optimum(h200, build, allreduce):
    # A microsecond less than proportional: a line through such times would begin below zero.
    free = allreduce.assign(median_ms=1e3 * allreduce["size_bytes"] / 320e9 - 1e-3)
    assert "a call costs nothing" in problem(build(h200, free), "ddp_bucketed_benchmarking (b)")


@pytest.mark.parametrize("beside", ["missing", "other_backend", "skipped"])
def test_without_a_measured_all_reduce_there_is_no_model(h200, build, allreduce, beside):
    rows = {
        "missing": NOTHING,
        "other_backend": allreduce.query("backend == 'gloo'"),
        "skipped": pd.DataFrame([{"backend": "nccl", "world_size": 2, "status": "skipped", "reason": "no GPU"}]),
    }[beside]
    assert problem(build(h200, rows), "ddp_bucketed_benchmarking (b)") == ""


def test_what_has_no_memory_shows_as_oom_and_is_left_out_of_comparisons(small_gpu, text, build):
    words = text(small_gpu)
    assert re.search(r"\| flat +\| +OOM \|", words)
    assert "1 of 12 figures is missing" in words
    assert problem(build(small_gpu), "minimal_ddp_flat_benchmarking") == ""


def test_a_machine_with_one_gpu_gets_the_reason_alone(skipped, build):
    only = build(skipped, NOTHING)
    assert only.answer == "Nothing was measured: needs 2 GPUs, 1 present."
    assert (only.parts, only.actions, only.problems) == ((), (), ())


def test_a_captured_share_is_given_where_it_was_captured(h200, smoke, build):
    name = "ddp_overlap_individual_parameters_benchmarking"
    assert problem(build(h200), name).count("of its communication runs beside computation.") == 2
    assert "for the same cores" in problem(build(smoke), name)
    without = h200[h200["phase"] != "captured_step"]
    disturbed = h200.assign(span_ms=2 * h200["span_ms"])
    assert "captured" not in problem(build(without), name) + problem(build(disturbed), name)


def test_unstable_communication_is_marked_in_answers(h200, build):
    shaky = h200.assign(status=h200["status"].mask(h200["phase"] == "communication", "unstable"))
    assert problem(build(shaky), "naive_ddp_benchmarking").count(" ms (unstable) of it (") == 2
    assert problem(build(shaky), "minimal_ddp_flat_benchmarking").count(" ms (unstable) of communication are left") == 2


def test_what_is_left_after_backward_was_not_hidden(h200):
    run = facts.runs(h200)[1]
    transfer_ms = 1e3 * 7.99e9 / 320e9  # of all gradients
    hidden = run.captures["hidden_pct"] / 100
    assert hidden["naive"] == pytest.approx(0, abs=1e-9)
    assert hidden["overlap"] == pytest.approx(1 - run.left.loc["overlap", "median_ms"] / transfer_ms, rel=0.01)


def test_others_stand_beside_the_same_variant_model_and_ranks(h200, smoke):
    pairs = baselines.pairs(h200)
    overlap = facts.runs(h200)[1].steps.loc["overlap", "median_ms"]
    line = pairs[pairs["what"] == "step of xl, overlap, 2 ranks, bf16"].iloc[0]
    assert (line["theirs"], line["ours"]) == (796, overlap)
    assert baselines.pairs(smoke).empty
