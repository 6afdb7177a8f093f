import re

import pandas as pd
import pytest

from pipeline.formulas.collectives import all_reduce_bus_factor
from pipeline.report.section import FORMS
from pipeline.report.table_rows import ok
from pipeline.stages.allreduce.report import baselines, findings, section
from pipeline.stages.allreduce.report.selection import bursts, completed, fits

from ..sections import (
    contents,
    drawn_figures,
    faults_of_parts,
    gaps,
    keys,
    linked_figures,
    numbers_that_stay,
    prose,
    render,
    template_numbers,
    unnamed_rows,
)

MEASURED = ("h200", "laptop", "smoke")
FIGURES = {"time", "busbw", "ways"}


@pytest.fixture(scope="module")
def rendered(make_rows, tmp_path_factory):
    return render(section.build, {name: make_rows(name) for name in MEASURED}, tmp_path_factory)


@pytest.fixture
def build(undrawn, tmp_path):
    return lambda rows: section.build(rows, tmp_path)


def scaled(rows, factor, mask):
    rows = rows.copy()
    rows.loc[mask, ["median_ms", "q1_ms", "q3_ms"]] *= factor
    rows.loc[mask, ["algbw_gb_per_s", "busbw_gb_per_s"]] /= factor
    return rows


@pytest.mark.parametrize("name", MEASURED)
def test_the_section_holds_no_gap_in_its_words(rendered, name):
    assert gaps(rendered[name][1]) == []


@pytest.mark.parametrize("name", MEASURED)
def test_every_figure_drawn_is_linked_and_every_link_is_drawn(rendered, name):
    _, text, folder = rendered[name]
    assert linked_figures(text, "allreduce") == FIGURES
    assert drawn_figures(folder) == FIGURES


def test_figures_are_the_same_bytes_when_drawn_again(rendered, tmp_path):
    rows, _, folder = rendered["h200"]
    section.build(rows, tmp_path)
    assert contents(tmp_path) == contents(folder)


def test_the_template_has_no_number_of_its_own():
    assert template_numbers(section.TEMPLATE) == []


@pytest.mark.parametrize("name", MEASURED)
def test_no_number_of_the_prose_stays_when_every_figure_is_another(make_rows, monkeypatch, name):
    monkeypatch.setattr(section, "draw_all", lambda *_: dict.fromkeys(FIGURES, "link"))
    ours = lambda rows: section.build(rows, None).split("### Others' figures")[0]  # noqa: E731
    rows = make_rows(name)
    sizes_mb = {f"{size_bytes / 1e6:g}" for size_bytes in rows["size_bytes"].dropna()}
    ring = all_reduce_bus_factor(4) / all_reduce_bus_factor(2)  # what more ranks should cost, by formula
    allowed = {*sizes_mb, f"{ring:g}"}
    assert numbers_that_stay(ours, rows, keys("allreduce", "calls"), allowed) == set()


def test_the_section_of_a_part_of_the_cells_is_whole(make_rows, tmp_path_factory):
    assert faults_of_parts(section.build, "allreduce", make_rows("h200"), tmp_path_factory) == {}


@pytest.mark.parametrize("name", MEASURED)
def test_the_columns_of_rows_tell_the_rows_of_a_cell_apart(make_rows, name):
    assert unnamed_rows("allreduce", make_rows(name)).empty


@pytest.mark.parametrize("name", MEASURED)
def test_the_assignments_question_is_answered_by_name(rendered, name):
    assert "### distributed_communication_single_node" in rendered[name][1]


@pytest.mark.parametrize("name", MEASURED)
def test_a_time_in_the_prose_is_one_of_the_medians(rendered, name):
    rows, text, _ = rendered[name]
    answer = text.split("### Bursts")[0]
    medians = {FORMS["ms"](value) for value in rows["median_ms"].dropna()}
    times = re.findall(r"[\d.,]+ (?:ms|s)(?= \()", prose(answer))
    assert times
    assert set(times) <= medians


def test_the_fits_of_the_section_are_those_of_the_tables(rendered):
    rows, text, _ = rendered["h200"]
    found = fits(completed(rows)).query("timing == 'burst'").set_index(["backend", "world_size"])
    assert found.loc[("nccl", 4), "busbw_gb_per_s"] == pytest.approx(320, rel=0.02)
    assert found.loc[("gloo", 6), "latency_us"] == pytest.approx(300, rel=0.1)
    gloo = next(entry for entry in findings.latencies(completed(rows)) if entry["backend"] == "gloo")
    assert gloo["latency_ms"]["6 ranks"] == pytest.approx(0.300, rel=0.1)
    latency = FORMS["number"](found.loc[("nccl", 2), "latency_us"])
    assert re.search(rf"\| nccl +\| +2 \| burst +\| +{latency} \|", text)


def test_too_few_gpus_show_with_their_reason_in_tables_and_never_as_zero(rendered):
    _, text, _ = rendered["h200"]
    lines = [line for line in text.splitlines() if re.match(r"\| nccl +\| +1000 MB", line)]
    assert [line.count("skipped: needs 8 GPUs, 4 present") for line in lines] == [1, 1]
    assert not re.search(r"\| +0(\.0*)? +\|", text)


def test_an_unstable_row_keeps_its_figure_and_says_so(rendered):
    _, text, _ = rendered["laptop"]
    assert re.search(r"\| gloo +\| +1 MB \| +[\d.]+ \[[\d., ]+\] \(unstable\) \|", text)


def test_bursts_on_one_piece_of_memory_are_not_said_to_move_on(make_rows, build):
    rows = make_rows("h200")
    assert "each on other memory" in build(rows)
    assert "each on other memory" not in build(rows.drop(columns="parts"))  # as of records without that figure


def test_more_ranks_than_cores_are_named(rendered):
    assert "More ranks than cores: 4 ranks on 2 cores." in rendered["laptop"][1]
    assert "More ranks than cores" not in rendered["h200"][1]


def test_both_ways_of_timing_are_compared_for_each_clock(rendered):
    _, text, _ = rendered["h200"]
    assert "**nccl**, host clock: a single call takes" in text
    assert "**nccl**, CUDA events: a single call takes" in text
    found = {
        (entry["backend"], entry["clock"]): entry
        for entry in findings.single_over_burst(completed(rendered["h200"][0]))
    }
    assert set(found) == {("gloo", "host"), ("nccl", "host"), ("nccl", "cuda_events")}
    assert found["nccl", "host"]["smallest"].min() > found["nccl", "host"]["largest"].max()


def test_out_of_place_is_nccls_own_or_said_to_be_lacking(rendered):
    assert "out of place is NCCL's own" in rendered["h200"][1]
    assert "there is no such figure here" in rendered["laptop"][1]


def test_nccl_in_place_is_what_out_of_place_and_torch_are_held_against(make_rows):
    rows = make_rows("h200")
    inside_ms = 10.0
    bursts_ms = {("nccl", "in_place"): inside_ms, ("nccl", "out_of_place"): 9.0, ("torch", "in_place"): 12.0}
    medians_ms = [bursts_ms.get(way, 1.0) for way in zip(rows["impl"], rows["placement"], strict=True)]
    found = findings.direct_nccl(completed(rows.assign(median_ms=medians_ms)))
    assert (set(found["placement"]), set(found["torch"])) == ({9 / 10}, {12 / 10})


@pytest.mark.parametrize(("factor", "word"), [(0.5, "less than"), (1, "as"), (3, "more than")])
def test_the_word_on_more_ranks_follows_the_times(rendered, factor, word):
    rows = rendered["laptop"][0]
    more = findings.by_backend(completed(scaled(rows, factor, rows["world_size"] == 4)))[0]["more"]
    assert (more["few"], more["many"], more["word"]) == ("2 ranks", "4 ranks", word)
    assert more["ring_ratio"] == all_reduce_bus_factor(4) / all_reduce_bus_factor(2) == 1.5


@pytest.mark.parametrize(
    ("busbw", "word"),
    [
        ([1, 2, 3, 4], "rises"),
        ([1.1, 2.22, 2.21, 2.17], "rises up to 10 MB and stays level from there"),
        ([1.3, 1.9, 2.2, 2.15], "rises up to 100 MB and stays level from there"),
        ([4, 3, 2, 2.01], "falls up to 100 MB and stays level from there"),
        ([2, 2.02, 2, 2.01], "stays level"),
        ([1, 2, 1, 1.01], "goes up and down"),
    ],
)
def test_bus_bandwidth_that_stays_level_in_the_end_is_not_said_to_rise(rendered, busbw, word):
    rows = completed(rendered["laptop"][0])
    for _, by_size in bursts(ok(rows)).groupby("world_size"):
        rows.loc[by_size.index, "busbw_gb_per_s"] = busbw
    assert findings.by_backend(rows)[0]["busbw_trends"] == {word: ["2 ranks", "4 ranks"]}


def test_nothing_unstable_is_quoted_without_saying_so(make_rows, build):
    rows = make_rows("h200")
    texts = [prose(build(rows.assign(status=rows["status"].replace("ok", status)))) for status in ("ok", "unstable")]
    plain, marked = (re.findall(r"\([^()]*ranks\)", text) for text in texts)
    assert plain
    assert marked == []
    assert [len(re.findall(r"× \(unstable\)", text)) for text in texts] == [
        0,
        4,
    ]  # more ranks, at both ends of the sizes


def test_a_fit_to_unstable_figures_says_so(rendered):
    rows, text, _ = rendered["laptop"]
    way = rows.loc[rows["status"] == "unstable", "timing"].item()
    found = fits(completed(rows))
    assert list(found.loc[found["unstable"], "timing"]) == [way]
    assert f"| {way} (unstable) |" in text


def test_one_size_gives_no_growth_and_no_fit(rendered):
    _, text, _ = rendered["smoke"]
    assert "exponent" not in text
    assert "### Latency and bandwidth" not in text


def test_gloo_and_nccl_are_compared_where_both_ran(rendered):
    assert "For the same size and ranks gloo takes" in rendered["h200"][1]
    assert "For the same size and ranks" not in rendered["laptop"][1]
    gloo_over_nccl = findings.backends_compared(completed(rendered["h200"][0]))
    assert gloo_over_nccl["1000 MB, 2 ranks"] == pytest.approx(320 / 1.2, rel=0.02)  # their bus bandwidths


def test_nothing_measured_gives_the_reason_alone(make_rows, build):
    text = build(make_rows("nothing"))
    assert "No all-reduce could be timed" in text
    assert "skipped: NCCL needs a GPU for each of 2 ranks, none present" in text
    assert "![" not in text


def test_nccl_that_could_not_be_called_leaves_the_rest(rendered, build):
    rows = rendered["h200"][0]
    kept = rows[(rows["impl"] != "nccl") & (rows["status"] == "ok")]
    skipped = {
        "backend": "nccl",
        "world_size": 2,
        "timing": "burst",
        "impl": "nccl",
        "status": "skipped",
        "reason": "why",
    }
    text = build(pd.concat([kept, pd.DataFrame([{**skipped, "placement": "out_of_place"}])], ignore_index=True))
    assert "skipped: why" in text
    assert "there is no such figure here" in text


def test_others_stand_beside_ours_for_the_same_ranks_and_size_only(rendered):
    rows, text, _ = rendered["h200"]
    pairs = baselines.beside_ours(completed(rows))
    pair = pairs.query(
        "write_up.str.startswith('write-up 4') and backend == 'nccl' and world_size == 2 and size_mb == 100"
    )
    assert list(pair["theirs_ms"]) == [0.693]
    assert set(pairs["world_size"]) == {2, 4, 6}
    assert ((pairs["size_bytes"] / pairs["size_mb"] / 1e6 - 1).abs() <= 0.1).all()
    assert "includes process start" in text


def test_our_means_stand_beside_their_means(rendered):
    rows = rendered["h200"][0]
    pairs = baselines.beside_ours(completed(rows.assign(mean_ms=2 * rows["median_ms"])))
    medians = baselines.beside_ours(completed(rows.assign(mean_ms=rows["median_ms"])))
    assert list(pairs["ratio"]) == pytest.approx(list(2 * medians["ratio"]))
    assert list(pairs["burst_ms"]) == pytest.approx(list(2 * medians["burst_ms"]))


def test_our_unstable_figures_beside_others_say_so(make_rows):
    rows = make_rows("h200")
    smallest = rows["size_bytes"].min()
    of_it = (rows["timing"] == "single") & (rows["size_bytes"] == smallest) & (rows["backend"] == "gloo")
    pairs = baselines.beside_ours(completed(rows.assign(status=rows["status"].mask(of_it, "unstable"))))
    unstable = pairs["single_status"] == "unstable"
    assert set(pairs.loc[unstable, "size_bytes"]) == {smallest}
    assert sum(table.count("(unstable)") for table in baselines.full_tables(pairs)) == 2 * unstable.sum()
    assert "(unstable)" in baselines.summary_table(pairs)
    assert "(unstable)" not in baselines.summary_table(pairs[~unstable])


def test_sizes_that_nobody_else_measured_are_compared_with_nobody(rendered):
    rows = rendered["smoke"][0]
    assert len(baselines.beside_ours(completed(rows)))
    assert baselines.beside_ours(completed(rows.assign(size_bytes=rows["size_bytes"] / 100))).empty
