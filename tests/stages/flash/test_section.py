import re

import numpy as np
import pandas as pd
import pytest

from pipeline.report.table_rows import ok
from pipeline.stages.flash.cell import Cell
from pipeline.stages.flash.report import findings, section, selection, tables

from ..sections import (
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

ALL = ("h200", "laptop", "smoke")
DTYPES = {"h200": ("bf16", "fp32"), "laptop": ("bf16", "fp32"), "smoke": ("fp32",)}
FIGURES = {
    "h200": ("times", "throughput", "speedup", "memory"),
    "laptop": ("times", "throughput", "speedup"),
    "smoke": ("times", "throughput", "speedup"),
}
TIMES = ["median_ms", "q1_ms", "q3_ms", "mean_ms", "std_ms", "min_ms", "max_ms"]


@pytest.fixture(scope="module")
def rendered(make_rows, tmp_path_factory):
    return render(section.build, {name: make_rows(name) for name in ALL}, tmp_path_factory)


@pytest.fixture
def build(undrawn, tmp_path):
    return lambda rows: section.build(rows, tmp_path)


@pytest.mark.parametrize("name", ALL)
def test_the_section_holds_no_gap_in_its_words(rendered, name):
    _, text, _ = rendered[name]
    assert gaps(text) == []


@pytest.mark.parametrize("name", ALL)
def test_every_figure_drawn_is_linked_and_every_link_is_drawn(rendered, name):
    _, text, folder = rendered[name]
    expected = {f"{figure}_{dtype}" for figure in FIGURES[name] for dtype in DTYPES[name]}
    assert linked_figures(text, "flash") == expected
    assert drawn_figures(folder) == expected


@pytest.mark.parametrize("name", ALL)
def test_the_problems_of_the_assignment_are_answered_by_name(rendered, name):
    _, text, _ = rendered[name]
    titles = re.findall(r"^### (.+)$", text, flags=re.MULTILINE)
    assert titles[:3] == ["flash_forward", "flash_backward", "flash_benchmarking"]
    assert ("leaderboard" in titles) is (name == "h200")


def test_the_template_has_no_number_of_its_own():
    assert template_numbers(section.TEMPLATE, besides="FlashAttention-2") == []


def test_the_section_of_a_part_of_the_cells_is_whole(make_rows, tmp_path_factory):
    assert faults_of_parts(section.build, "flash", make_rows("h200"), tmp_path_factory) == {}


@pytest.mark.parametrize("name", ALL)
def test_the_columns_of_rows_tell_the_rows_of_a_cell_apart(make_rows, name):
    assert unnamed_rows("flash", make_rows(name)).empty


@pytest.mark.parametrize("name", ["h200", "laptop"])
def test_no_number_of_the_prose_stays_when_every_figure_is_another(make_rows, monkeypatch, name):
    # Quartiles no longer enclose medians when all are changed, and cannot be drawn.
    monkeypatch.setattr(section, "draw_all", lambda *_: {"bf16": {"times": "link", "throughput": "link"}})
    keys = [*selection.PROBLEM, "impl", "phase", "setting_min_samples"]
    rows = make_rows(name)
    measured_here = lambda found: section.build(found, None).split("### Others' figures")[0]  # noqa: E731
    # In FlashAttention-2 and in powers of ten; then counts of problems, rows and implementations, which are no figures.
    written = {"2", "3", "7"}
    problems = rows[rows["seq_len"] >= selection.LONG].drop_duplicates(["dtype", *selection.PROBLEM])
    main = selection.main_grid(problems)["dtype"].value_counts()
    ranked = selection.leaderboard(ok(rows))["impl"].nunique()
    counts = {*main, ranked, len(ok(selection.of(rows, "tiled")))}
    assert numbers_that_stay(measured_here, rows, keys, allowed=written | set(map(str, counts))) == set()


def test_eager_out_of_memory_shows_as_oom_in_table_prose_and_list(rendered):
    _, text, _ = rendered["h200"]
    benchmark = part(text, "flash_benchmarking")
    assert re.search(r"\| +64 \| +65536 \|[^\n]*\| +OOM \| +OOM \| +OOM \|", benchmark)
    assert "**bf16**: eager ran out of memory from length 65536 on." in benchmark
    assert not re.search(r"\| +0(\.0*)? +\|", benchmark.split("**Against torch's implementations.**")[0])


def test_memory_is_said_to_run_out_from_the_shortest_sequence_at_which_it_did(make_rows):
    rows = make_rows("h200")
    rows.loc[(rows["impl"] == "eager") & (rows["seq_len"] >= 16384), "status"] = "oom"
    ends = {(found["impl"], found["dtype"]): found["seq_len"] for found in findings.ran_out(rows)}
    assert ends["eager", "bf16"] == ends["eager", "fp32"] == 16384
    assert ends["compiled_eager", "bf16"] == 65536


def test_memory_is_compared_at_the_longest_sequence_that_eager_did_too(make_rows):
    found = findings.memory(make_rows("h200"))
    assert (found["seq_len"], found["head_dim"]) == (16384, 64)
    assert found["ratio"] == pytest.approx(1 + 3 * 16384**2 / (8 * 16384 * 64))  # three of scores, eight of vectors


def test_a_lone_calls_time_is_held_against_ours(make_rows):
    rows = make_rows("h200")
    rows["median_call_ms"] = rows["impl"].map({"triton": 2.0}).fillna(5.0).where(rows["median_call_ms"].notna())
    for entry in findings.latency(rows):
        assert entry["ours_ms"] == 2
        assert entry["others"].to_numpy() == pytest.approx(5 / 2)
        assert entry["choice"] == {"bf16": "sdpa_cudnn", "fp32": "sdpa_efficient"}[entry["dtype"]]


def test_sdpas_own_choice_is_named_only_where_it_is_one(make_rows):
    rows = make_rows("h200")
    rows.loc[(rows["dtype"] == "bf16") & (rows["head_dim"] == 16), "sdpa_choice"] = "sdpa_flash"
    assert {entry["dtype"] for entry in findings.latency(rows) if "choice" in entry} == {"fp32"}
    without = findings.latency(rows.drop(columns="sdpa_choice"))
    assert without
    assert not any("choice" in entry for entry in without)


def test_sdpas_own_choice_and_the_rival_are_each_named_once_with_a_lone_call(rendered):
    _, text, _ = rendered["h200"]
    bf16, fp32 = re.findall(r"a lone call of ours in \w+ typically takes [^;]+; (.+)\.\n", text)
    assert re.fullmatch(
        r"sdpa_cudnn, SDPA's own choice, takes \S+ and \S+ that; sdpa_flash takes \S+ and \S+ that", bf16
    )
    assert re.fullmatch(r"sdpa_efficient, SDPA's own choice, takes \S+ and \S+ that", fp32)


def test_a_mean_over_the_grid_lies_between_the_lowest_and_the_highest(make_rows):
    lines = [line.strip("| ").split("|") for line in tables.gains(make_rows("laptop")).splitlines() if "sdpa" in line]
    assert lines
    for *_, mean, lowest, highest, _slower in lines:
        assert float(lowest) < float(mean) < float(highest)


def test_what_a_dtype_rules_out_is_named_once_with_its_reason_and_nowhere_else(rendered):
    _, text, _ = rendered["h200"]
    head, missing = text.split("### What was not measured, or not well")
    assert re.search(r"\| fp32 +\| sdpa_cudnn +\| skipped +\| Expected query", missing)
    assert "Expected query" not in head


def test_a_machine_without_a_gpu_compares_the_tiled_one_with_what_there_is(rendered):
    _, text, _ = rendered["laptop"]
    assert '"ours" is the tiled PyTorch operations' in text
    assert "needs a CUDA GPU" in text
    assert "A lone call" not in text


def test_where_everything_is_skipped_one_line_says_so(build, make_rows):
    keys = pd.DataFrame(Cell().row_keys())
    first = make_rows("smoke").iloc[:1].drop(columns=["impl", "phase"])
    rows = keys.merge(first, how="cross").assign(status="skipped", reason="needs 1 GPU, 0 present")
    text = build(rows)
    assert "No FlashAttention of ours was timed" in text
    assert "needs 1 GPU, 0 present" in text


def set_times_of_ours(rows, where, factor):
    """Give ours, at some rows, the times of cuDNN's implementation times a factor."""
    mine = (rows["impl"] == "triton") & where
    cudnn = rows[rows["impl"] == "sdpa_cudnn"].set_index([*selection.PROBLEM, "phase"])
    keys = pd.MultiIndex.from_frame(rows.loc[mine, [*selection.PROBLEM, "phase"]])
    for column in TIMES:
        rows.loc[mine, column] = cudnn.loc[keys, column].to_numpy() * factor


@pytest.mark.parametrize(("factor", "word"), [(0.3, "faster than"), (1, "as fast as"), (3, "slower than")])
def test_the_word_against_the_best_peer_follows_the_times(make_rows, factor, word):
    rows = make_rows("h200")
    rows = rows[rows["dtype"] == "bf16"].copy()
    set_times_of_ours(rows, rows["impl"] == "triton", factor)
    (entry,) = findings.against_peers(rows)
    assert (entry["forward_backward"]["word"], entry["forward"]["word"]) == (word, word)
    (standing,) = findings.leaderboard_standing(rows)
    assert standing["word"] == word
    assert standing["over_peer"] == pytest.approx(1 / factor)


def test_the_rival_is_sdpa_s_flash_kernel_or_in_fp32_what_is_as_exact(make_rows):
    rivals = {entry["dtype"]: entry["rival"]["impl"] for entry in findings.against_peers(make_rows("h200"))}
    assert rivals == {"bf16": "sdpa_flash", "fp32": "sdpa_efficient"}


def test_every_problem_is_counted_at_which_ours_is_slower_than_the_rival_by_however_little(make_rows):
    rows = make_rows("h200")
    rows = rows[rows["dtype"] == "bf16"]
    rival = rows[rows["impl"] == "sdpa_flash"].set_index([*selection.PROBLEM, "phase"])["median_ms"]
    mine = rows["impl"] == "triton"
    keys = pd.MultiIndex.from_frame(rows.loc[mine, [*selection.PROBLEM, "phase"]])
    rows.loc[mine, "median_ms"] = rival[keys].to_numpy() * 0.99
    rows.loc[mine & (rows["seq_len"].isin([512, 8192])), "median_ms"] *= 1.02
    (entry,) = findings.against_peers(rows)
    # 8192 at two head_dims; what is shorter than where the device decides does not count.
    assert (entry["rival"]["forward"]["slower"], entry["rival"]["forward"]["problems"]) == (2, 8)
    assert entry["rival"]["forward"]["word"] == "as fast as"


@pytest.mark.parametrize("name", ["h200", "laptop"])
def test_whoever_is_compared_on_the_grid_the_finding_says_from_which_length_at_how_many_heads_and_by_which_clock(
    rendered, name
):
    _, text, _ = rendered[name]
    found = re.search("<!-- findings -->(.*)<!-- end of findings -->", text, flags=re.DOTALL)[1]
    found = [" ".join(line.split()) for line in found.split("\n- ")]
    clock = {"h200": "device time", "laptop": "time"}[name]
    for dtype in DTYPES[name]:
        lines = [
            line for line in found if line.startswith(f"In {dtype}, with batch one and one head, from length 1024 on")
        ]
        assert [f" {clock} " in line for line in lines] == [True, True]
        assert ["device" in line for line in lines] == [name == "h200"] * 2


def test_where_ours_is_slower_than_the_rival_at_none_that_is_said_of_the_problems_compared(rendered):
    _, text, _ = rendered["h200"]
    assert "nowhere" not in text
    assert "ours is slower than it at none of these problems." in text


def test_at_shapes_of_real_models_ours_is_not_faster_because_it_is_with_one_head(make_rows, build):
    rows = make_rows("h200")
    rows = rows[rows["dtype"] == "bf16"].copy()
    several = rows["num_heads"] > 1
    set_times_of_ours(rows, ~several, 0.5)
    set_times_of_ours(rows, several & (rows["phase"] != "forward"), 1.25)
    set_times_of_ours(rows, several & (rows["phase"] == "forward") & (rows["batch_size"] == 1), 0.8)
    set_times_of_ours(rows, several & (rows["phase"] == "forward") & (rows["batch_size"] == 4), 1.25)
    (entry,) = findings.shapes_standing(rows)
    assert (entry["heads"], entry["peers"]) == ([16], ["sdpa_cudnn"])
    assert [(part["name"], part["faster"], part["slower"], part["problems"]) for part in entry["parts"]] == [
        ("forward", 2, 1, 3),
        ("forward_backward", 0, 3, 3),
    ]
    text = " ".join(build(rows).split())
    assert (
        "- In bf16, at shapes of real models (16 heads), the fastest of torch's implementations, sdpa_cudnn, takes"
        " 0.800× to 1.25× the device time of ours forward and 0.800× forward + backward;"
        " ours is faster at 2 of 3 shapes and at 0 of 3 shapes."
    ) in text
    assert (
        "- **bf16**, forward + backward: the fastest of torch's implementations, sdpa_cudnn, takes 0.800× the device"
        " time of ours; ours is faster at 0 of 3 shapes and slower at 3."
    ) in text


def test_growth_is_of_head_dims_that_reach_the_longest_sequence_and_said_of_each_where_they_differ(make_rows, build):
    rows = make_rows("h200")
    rows = rows[(rows["dtype"] == "bf16") & ((rows["head_dim"] == 64) | (rows["seq_len"] <= 16384))]
    (entry,) = findings.growth(rows)
    assert list(entry["exponents"].index) == ["head_dim 64"]
    rows = make_rows("h200")
    rows = rows[rows["dtype"] == "bf16"].copy()
    rows.loc[(rows["head_dim"] == 64) & (rows["seq_len"] == 65536), TIMES] /= 4
    assert (
        "grows more than linearly but less than quadratically with length at head_dim 16,"
        " and grows about linearly at head_dim 64;"
    ) in build(rows)


def test_the_best_peer_is_the_fastest_with_a_figure_at_each_problem(make_rows):
    rows = make_rows("h200")
    best = selection.best_peer(rows)
    assert len(best) == len(rows.drop_duplicates([*selection.PROBLEM, "phase"]))
    peers = ok(rows)[~ok(rows)["impl"].isin(["triton", "tiled"])]
    lowest = peers.groupby([*selection.PROBLEM, "phase"])["median_ms"].min()
    assert best.set_index([*selection.PROBLEM, "phase"])["median_ms"].sort_index().equals(lowest.sort_index())
    assert set(best.loc[best["dtype"] == "fp32", "impl"]) <= {"sdpa_efficient", "flex", "eager", "compiled_eager"}


def test_an_error_above_twice_eager_s_is_said(build, make_rows):
    rows = make_rows("laptop")
    rows.loc[(rows["impl"] == "tiled") & (rows["dtype"] == "bf16"), "dk_rel_error"] *= 3
    lines = [line for line in part(build(rows), "flash_backward").splitlines() if "gradients of ours" in line]
    assert ["more than twice" in line for line in lines] == [True, False]


def test_launch_gaps_that_may_be_in_a_figure_are_told(rendered):
    _, text, _ = rendered["h200"]
    assert re.search(r"\d+ of the \d+ figures of tiled may hold launch gaps", text)


def test_others_figures_stand_beside_ours_with_their_doubts(rendered):
    _, text, _ = rendered["h200"]
    others = text.split("### Others' figures")[1]
    assert "write-up 0 (H100)" in others
    assert "unit not printed, taken as ms" in others
    assert "write-up 2 (MI300X)" in part(text, "leaderboard")


def test_a_dtype_that_ours_cannot_do_is_not_spoken_of_with_another_implementation_s_figures(make_rows):
    rows = make_rows("h200")
    mine = (rows["impl"] == "triton") & (rows["dtype"] == "fp32")
    rows.loc[mine, "status"] = "skipped"
    assert [entry["dtype"] for entry in findings.against_peers(rows)] == ["bf16"]
    assert [entry["dtype"] for entry in findings.rates(rows)] == ["bf16"]


def test_where_eager_is_exact_by_chance_the_others_are_held_to_one_rounding(make_rows):
    rows = make_rows("laptop")
    rows.loc[rows["impl"] == "eager", "output_rel_error"] = 0.0
    for error, is_within in ((2e-8, True), (2e-7, False)):
        rows.loc[rows["impl"] == "tiled", "output_rel_error"] = rows["dtype"].map({"bf16": 0.0, "fp32": error})
        (of_bf16, of_fp32) = findings.correctness(rows, ("output",))
        assert of_bf16["within"]
        assert of_fp32["within"] is is_within
        assert np.isfinite(of_fp32["over_eager"]).all()
