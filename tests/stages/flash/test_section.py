import dataclasses
import re

import numpy as np
import pandas as pd
import pytest

from pipeline.report.baselines import COLUMNS
from pipeline.report.page_parts import Table
from pipeline.report.table_rows import ok
from pipeline.stages.flash.cell import Cell
from pipeline.stages.flash.report import baselines, facts, section

from ..sections import (
    built,
    contents,
    drawn_figures,
    gaps,
    linked_figures,
    render,
    thrice,
)

ALL = ("h200", "laptop", "smoke")
FIGURES = {name: {"rates"} for name in ALL}
TIMES = ["median_ms", "q1_ms", "q3_ms", "mean_ms", "std_ms", "min_ms", "max_ms"]
PROBLEMS = ["flash_forward", "flash_backward", "flash_benchmarking"]

build = built(section.build, "flash")


@pytest.fixture(scope="module")
def rendered(make_rows, tmp_path_factory):
    return render(build, {name: make_rows(name) for name in ALL}, tmp_path_factory)


def parts_of(rows):
    return section.build(rows)


@pytest.mark.parametrize("name", ALL)
def test_the_section_has_no_gap_and_links_every_figure_that_it_draws(rendered, name):
    _, text, folder = rendered[name]
    assert gaps(text) == []
    assert linked_figures(text, "flash") == drawn_figures(folder) == FIGURES[name]


def test_the_section_of_cells_with_repeats_is_whole(make_rows, undrawn, tmp_path):
    assert gaps(build(thrice("flash", make_rows("h200")), tmp_path)) == []


def test_the_same_rows_give_the_same_bytes(rendered, make_rows, tmp_path):
    _, text, folder = rendered["h200"]
    assert build(make_rows("h200"), tmp_path) == text
    assert contents(tmp_path) == contents(folder)


@pytest.mark.parametrize("name", ALL)
def test_every_problem_of_the_assignment_is_answered(make_rows, name):
    names = [problem.name for problem in parts_of(make_rows(name)).problems]
    assert names == PROBLEMS + (["leaderboard"] if name == "h200" else [])


def test_a_machine_without_a_gpu_compares_the_tiled_one_and_says_nothing_of_gpus(rendered):
    _, text, _ = rendered["laptop"]
    assert "our FlashAttention-2 in PyTorch operations" in text
    assert not re.search("GPU|CUDA|cuDNN|Triton", text)


def test_where_everything_is_skipped_one_line_says_so(make_rows):
    keys = pd.DataFrame(Cell().row_keys())
    first = make_rows("smoke").iloc[:1].drop(columns=["impl", "phase"])
    rows = keys.merge(first, how="cross").assign(status="skipped", reason="needs 1 GPU, 0 present")
    nothing = parts_of(rows)
    assert nothing.answer == "Nothing was measured: needs 1 GPU, 0 present."
    assert not nothing.parts
    assert not nothing.actions


def test_where_ours_failed_everywhere_peers_are_not_called_ours(make_rows):
    rows = make_rows("smoke")
    rows.loc[rows["impl"] == "tiled", ["status", "reason"]] = ["oom", "out of memory"]
    found = parts_of(rows)
    assert found.answer == "Ours was not measured."
    assert "missing: out of memory (tiled)." in str(found.parts[0])


def at_bf16(make_rows):
    rows = make_rows("h200")
    return rows[rows["dtype"] == "bf16"].copy()


def set_times(rows, impl, like, factor):
    """Give one implementation, at the shapes of real models, the times of another times a factor."""
    shapes = (rows["impl"] == impl) & (rows["num_heads"] > 1)
    others = rows[rows["impl"] == like].set_index([*facts.PROBLEM, "phase"])
    keys = pd.MultiIndex.from_frame(rows.loc[shapes, [*facts.PROBLEM, "phase"]])
    for column in TIMES:
        rows.loc[shapes, column] = others.loc[keys, column].to_numpy() * factor
    return rows


@pytest.mark.parametrize(
    ("factor", "winner"), [(0.5, "our Triton kernels"), (1.0, None), (0.95, None), (2.0, "cuDNN through SDPA")]
)
def test_a_kernel_is_advised_only_where_it_is_clearly_the_fastest(make_rows, factor, winner):
    actions = parts_of(set_times(at_bf16(make_rows), "triton", "sdpa_cudnn", factor)).actions
    assert [action.what for action in actions] == (
        [f"**Where attention takes much of a step, use {winner} in bf16.**"] if winner else []
    )
    assert all("at all 4 shapes" in action.why for action in actions)


def test_a_gain_within_the_quartiles_is_not_advised(make_rows):
    rows = set_times(at_bf16(make_rows), "triton", "sdpa_cudnn", 0.8)
    assert parts_of(rows).actions
    rows["q1_ms"] = rows["median_ms"] * 0.8
    assert not parts_of(rows).actions


def test_shapes_at_which_another_kernel_wins_are_named(make_rows):
    rows = set_times(at_bf16(make_rows), "triton", "sdpa_cudnn", 2.0)
    one_shape = (rows["batch_size"] == 4) & (rows["impl"] == "triton")
    rows.loc[one_shape, TIMES] /= 4
    (action,) = parts_of(rows).actions
    assert action.what == "**Where attention takes much of a step, use cuDNN through SDPA in bf16.**"
    assert "At 4×16×4096×64 full the fastest is our Triton kernels, 2.00× as fast as the next." in action.why


def test_several_shapes_at_which_one_other_kernel_wins_are_named_together(make_rows):
    rows = set_times(at_bf16(make_rows), "triton", "sdpa_cudnn", 2.0)
    rows.loc[(rows["seq_len"] == 16384) & (rows["impl"] == "triton"), TIMES] /= 4
    rows.loc[(rows["num_heads"] == 32) & (rows["impl"] == "triton"), TIMES] *= 2
    (action,) = parts_of(rows).actions
    together = (
        "At 1×16×16384×128 causal and 1×16×16384×64 causal the fastest is our Triton kernels, up to 2.00× as fast as"
    )
    assert together in action.why


def test_fp16_is_told_apart_from_bf16_only_where_another_kernel_wins(make_rows):
    rows = make_rows("h200")
    for dtype in ("bf16", "fp16"):
        here = rows["dtype"] == dtype
        rows.loc[here] = set_times(rows[here].copy(), "triton", "sdpa_cudnn", 0.5)
    (action,) = parts_of(rows).actions
    assert action.what == "**Where attention takes much of a step, use our Triton kernels in bf16.**"
    assert "In fp16 the gain" not in action.why
    rows.loc[here] = set_times(rows[here].copy(), "triton", "sdpa_cudnn", 2.0)
    rows.loc[rows["dtype"] == "fp16"] = set_times(rows[rows["dtype"] == "fp16"].copy(), "triton", "sdpa_cudnn", 2.0)
    (action,) = parts_of(rows).actions
    assert (
        action.what
        == "**Where attention takes much of a step, use our Triton kernels in bf16 and cuDNN through SDPA in fp16.**"
    )
    assert "In fp16 the gain is a tenth or more at " in action.why


def test_shared_keys_show_in_a_problems_name():
    row = pd.Series(dataclasses.asdict(Cell(num_heads=32, query_heads_per_kv_head=4)))
    assert facts.shape_label(row) == "1×32:8×1024×64 causal"
    assert "batch 1, 32 heads sharing 8 of keys and values, length 1024" in facts.shape_words(row)
    assert facts.shape_label(row.replace({4: 1})) == "1×32×1024×64 causal"


def test_the_reference_in_pytorch_operations_is_no_peer_at_the_shapes_of_real_models(make_rows):
    rows = make_rows("h200")
    rows.loc[rows["impl"] == "tiled", TIMES] /= 1e6  # were it the fastest
    found = parts_of(rows)
    figure = next(item for item in found.parts if getattr(item, "name", "") == "rates")
    assert "tiled" not in {label.get_text() for axes in figure.drawing.axes for label in axes.get_yticklabels()}
    table = next(item for item in found.parts if isinstance(item, Table))
    assert not table.cells["fastest of torch's"].str.contains("our FlashAttention").any()
    assert not any("our FlashAttention" in action.what for action in found.actions)


def test_the_rate_of_a_matrix_product_alone_stands_in_the_figure_where_it_was_measured(make_rows):
    def lines(*beside, peak_source="datasheet"):
        section_of_it = section.build(make_rows("h200").assign(peak_source=peak_source), *beside)
        figure = next(item for item in section_of_it.parts if getattr(item, "name", "") == "rates")
        return [line.get_xdata()[0] for line in figure.drawing.axes[0].lines]

    assert lines() == lines({"ceilings": pd.DataFrame()}) == [989.4]
    ceilings = pd.DataFrame({"dtype": ["bf16", "bf16", "fp32"], "tflops_per_s": [700.0, 777.0, 60.0]})
    assert lines({"ceilings": ceilings}) == [989.4, 777.0]
    assert lines({"ceilings": ceilings}, peak_source="measured") == [989.4]  # of such a product already


def test_what_was_measured_most_often_comes_first(make_rows):
    rows = at_bf16(make_rows)
    rows.loc[rows["num_heads"] == 32, "batch_size"] = 2
    assert facts.shape_label(facts.several_heads(facts.ordered(rows)).iloc[0]) == "2×32:8×8192×128 causal"
    thrice = (rows["num_heads"] > 1) & (rows["head_dim"] == 64)
    rows["samples_of_repeats"] = [[[1.0]] * (3 if more else 1) for more in thrice]
    rows.loc[rows["status"] != "ok", "samples_of_repeats"] = np.nan
    ordered = facts.several_heads(facts.ordered(rows))
    labels = list(dict.fromkeys(facts.shape_label(row) for _, row in ordered.iterrows()))
    assert (labels[0], labels[-1]) == ("1×16×16384×64 causal", "4×16×4096×64 full")
    assert set(ordered) == set(rows)


def test_the_leaderboard_has_no_shared_keys(make_rows):
    rows = make_rows("h200")
    shared = rows[(rows["num_heads"] == 16) & (rows["seq_len"] == 16384)].assign(query_heads_per_kv_head=4)
    assert len(facts.leaderboard(pd.concat([rows, shared]))) == len(facts.leaderboard(rows)) > 0


def test_sdpa_s_own_choice_is_told(make_rows):
    rows = set_times(at_bf16(make_rows), "triton", "sdpa_cudnn", 2.0)
    assert "SDPA picks it by default: there is nothing to change." in parts_of(rows).actions[0].why
    rows["sdpa_choice"] = "sdpa_flash"
    assert "ask for it with `torch.nn.attention.sdpa_kernel`" in parts_of(rows).actions[0].why


def test_the_answer_is_of_the_widest_causal_shape_of_real_models_and_names_the_shortest_time_first(make_rows):
    for factor, first in ((0.5, "with our Triton kernels"), (2.0, "with cuDNN through SDPA")):
        answer = parts_of(set_times(at_bf16(make_rows), "triton", "sdpa_cudnn", factor)).answer
        assert "In bf16 (batch 1, 16 heads, length 16384, head_dim 128, causal) forward + backward takes" in answer
        assert re.search(r"backward takes \S+ \S+ (.+?)(?:,| and)", answer)[1] == first


def test_of_one_head_the_answer_is_of_the_first_dtype_and_the_longest_sequence(make_rows):
    answer = parts_of(make_rows("laptop")).answer
    assert "In bf16 (batch 1, one head, length 1024, head_dim 64, causal) forward + backward takes" in answer


@pytest.mark.parametrize("name", ALL)
def test_the_table_of_one_head_has_ours_before_plain_attention(make_rows, name):
    table = parts_of(make_rows(name)).parts[-2].cells
    assert [title.rsplit(" ", 1)[0] for title in table][1:] == ["ours"] * 3 + ["plain"] * 3


def test_problems_at_which_ours_is_ahead_are_counted(make_rows):
    rows = at_bf16(make_rows)
    rows.loc[rows["impl"] == "triton", TIMES] *= 1000
    assert "at 0 of 10 problems in bf16." in parts_of(rows).answer
    short = (rows["impl"] == "triton") & (rows["seq_len"] == 128)
    rows.loc[short, TIMES] /= 1e6
    assert "at 2 of 10 problems in bf16." in parts_of(rows).answer


def test_memory_that_ran_out_shows_as_such_in_figure_table_and_answer(make_rows, rendered):
    _, text, _ = rendered["h200"]
    assert re.search(r"\| +65536 \|[^\n]*\| +OOM \| +OOM \| +OOM \|", text)
    found = parts_of(make_rows("h200"))
    assert (
        "which runs out of memory at length 65536" in {item.name: item.answer for item in found.problems}[PROBLEMS[2]]
    )
    rows = at_bf16(make_rows)
    failed = (rows["impl"] == "flex") & (rows["num_heads"] > 1)
    rows.loc[failed, ["status", "median_ms", "tflops_per_s"]] = ["oom", np.nan, np.nan]
    rows.loc[failed & (rows["seq_len"] == 4096), ["status", "median_ms", "tflops_per_s"]] = ["ok", 1.0, 99.0]
    figure = next(item for item in parts_of(rows).parts if getattr(item, "name", "") == "rates")
    labels = [text.get_text() for axes in figure.drawing.axes for text in axes.texts]
    assert labels.count("OOM") >= 2
    assert "99.0" in labels


def test_the_best_peer_is_the_fastest_with_a_figure_at_each_problem(make_rows):
    rows = make_rows("h200")
    pairs = facts.beside_peers(rows)
    peers = ok(rows)[~ok(rows)["impl"].isin(["triton", "tiled"])]
    lowest = peers.groupby([*facts.PROBLEM, "phase"])["median_ms"].min()
    assert len(pairs) == len(lowest)
    assert pairs.set_index([*facts.PROBLEM, "phase"])["median_ms_peer"].sort_index().equals(lowest.sort_index())
    assert (pairs["median_ratio"] * pairs["median_ms"]).tolist() == pytest.approx(pairs["median_ms_peer"].tolist())
    assert not set(pairs.loc[pairs["dtype"] == "fp32", "impl_peer"]) & {"sdpa_flash", "sdpa_cudnn"}


def test_errors_are_those_of_ours_at_most_over_eager_s_on_the_same_problem(make_rows):
    rows = make_rows("laptop")
    rows.loc[(rows["impl"] == "tiled") & (rows["dtype"] == "bf16"), "dk_rel_error"] *= 3
    of_bf16, of_fp32 = facts.largest_errors(rows, ("dq", "dk", "dv"), "backward")
    assert of_bf16 == ("bf16", pytest.approx(9e-3), pytest.approx(3))
    assert of_fp32 == ("fp32", pytest.approx(2e-7), pytest.approx(1))


def test_where_eager_is_exact_by_chance_ours_is_held_to_one_rounding(make_rows):
    rows = make_rows("laptop")
    rows.loc[rows["impl"] == "eager", "output_rel_error"] = 0.0
    rows.loc[rows["impl"] == "tiled", "output_rel_error"] = 2.0**-23
    assert facts.largest_errors(rows, ("output",), "forward")[1] == ("fp32", 2.0**-23, pytest.approx(2))


def test_others_times_are_paired_by_dtype_shape_and_phase(make_rows):
    pairs = baselines.pairs(make_rows("h200"))
    assert {*COLUMNS} <= {*pairs}
    assert not pairs[["what", "theirs", "ours", "write_up"]].isna().any().any()
    assert pairs["what"].str.startswith("leaderboard").sum() == 4
    mine = ok(make_rows("h200")).query("impl == 'triton' and phase == 'forward' and dtype == 'fp32' and num_heads == 1")
    mine = mine.set_index(["head_dim", "seq_len"])["median_ms"]
    line = pairs[pairs["what"] == "forward, triton, fp32, head_dim 16, length 128"].iloc[0]
    assert (line["theirs"], line["ours"], line["write_up"]) == (0.066489, mine[16, 128], "write-up 0 (H100)")
    assert baselines.pairs(make_rows("smoke")).empty
