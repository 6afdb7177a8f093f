import math
import re

import pytest

from pipeline.report.page_parts import Figure
from pipeline.stages.accounting.cell import QUESTIONS, Cell
from pipeline.stages.accounting.report import baselines, facts, section

from ..sections import built, contents, gaps

PROBLEMS = {
    "memory": ["communication_accounting (a)"],
    "fsdp": ["communication_accounting (b)"],
    "mesh": ["communication_accounting (c)", "communication_accounting (d)"],
    "buckets": ["ddp_bucketed_benchmarking (b)"],
    "activations": [],
    "ring": ["alternate_ring_all_reduce"],
    "parallel": ["data_parallel_calcs", "fsdp_calcs", "tp_calcs", "fsdp_tp_calcs"],
    "attention": ["pytorch_attention"],
}


@pytest.fixture
def text(undrawn, tmp_path):
    return lambda rows: built(section.build, "accounting")(rows, tmp_path)


def build(rows):
    return section.build(rows)


def problem(rows, name):
    return next((item.answer for item in build(rows).problems if item.name == name), "")


def test_the_section_answers_every_question_without_a_gap(make_rows, text):
    assert gaps(text(make_rows())) == []
    names = [item.name for item in build(make_rows()).problems]
    assert names == [name for found in PROBLEMS.values() for name in found]


def test_one_figure_is_shown(make_rows):
    parts = build(make_rows()).parts
    assert [part.name for part in parts if isinstance(part, Figure)] == ["mesh"]


def test_drawn_twice_the_section_has_the_same_bytes(make_rows, tmp_path):
    texts = [built(section.build, "accounting")(make_rows(), tmp_path / name) for name in ("a", "b")]
    assert texts[0] == texts[1]
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_the_answers_of_communication_accounting(make_rows):
    a, b, c = (problem(make_rows(), f"communication_accounting ({part})") for part in "abc")
    assert "3,518 GB (3,276 GiB), 44 GPUs of 80 GB (41 of 80 GiB)" in a
    assert "less than 95 GB from N = 38 on for sequences of 1 token, from N = 61 on (94.2 GB) for 4,096 tokens" in b
    assert "From 10,828 tokens on no number is enough." in b
    assert "On a mesh of 16 × 4 that is from 396 tokens per device on, 25,344 overall" in c


def test_half_of_the_activations_of_the_most_tokens_fill_a_device(make_rows):
    rows = facts.by_question(make_rows())["fsdp"]
    row = rows[rows["seq_len"] == 4096].iloc[0]
    half_bytes = row["activation_bytes"] / 2 * facts.most_tokens(rows) / 4096
    assert half_bytes == pytest.approx(1e9 * row["setting_device_memory_gb"])


def test_the_best_buckets_cost_twice_the_root_of_a_transfer_times_a_call(make_rows):
    rows = facts.by_question(make_rows())["buckets"]
    best = rows[rows["case"] == "best"].iloc[0]
    transfer_ms = best["gradient_bytes"] / 1e6 / best["setting_allreduce_gbytes_per_s"]
    overhead_ms = 2 * math.sqrt(transfer_ms * 1e-3 * best["setting_call_overhead_us"])
    assert best["overhead_ms"] == pytest.approx(overhead_ms)
    assert f"{overhead_ms:.2f} ms where one call" in problem(make_rows(), "ddp_bucketed_benchmarking (b)")


def test_the_limits_of_parallel_layers_are_those_of_the_settings(make_rows):
    rows = make_rows(batch_tokens=500_000)
    batch_limit = 1 + 500_000 * 90e9 / 460e12
    width_limit = 1 + 1.5 * 12288 * 90e9 / 460e12
    assert f"with T = 500,000 (C = 460 TFLOP/s, W = 90 GB/s): {int(batch_limit)} devices" in problem(rows, "fsdp_calcs")
    assert f"at {batch_limit:.1f} × {width_limit:.1f} computing" in problem(rows, "fsdp_tp_calcs")
    assert f": {int(width_limit)} devices" in problem(rows, "tp_calcs")


def test_whole_tensors_around_a_ring_take_half_as_many_times_as_long_as_there_are_devices(make_rows):
    rows = facts.by_question(make_rows())["ring"].set_index(["case", "num_devices"])["ring_ms"]
    assert rows["whole"][64] == pytest.approx(32 * rows["shares"][64])
    assert "over 64 devices that each send 90 GB/s: 35.9 s against 1.12 s" in problem(
        make_rows(), "alternate_ring_all_reduce"
    )


def test_flash_keeps_an_output_and_a_sum_a_query_where_eager_keeps_all_scores(make_rows):
    seq_len, head_dim = 16384, 64
    assert f"GiB: {seq_len / (head_dim + 1):.0f}× less" in problem(make_rows(), "pytorch_attention")


def test_what_a_layer_keeps_of_a_token_adds_up_to_what_the_model_keeps(make_rows):
    d, f, heads, seq_len, layers, batch = 2560, 10240, 32, 1024, 32, 4
    layers_bytes = 4 * layers * batch * seq_len * (8 * d + 4 * f + heads * seq_len + 2)
    (kept,) = [str(part) for part in build(make_rows()).parts if "numbers a token" in str(part)]
    assert kept.startswith("Each of the 32 layers of 2.7B keeps (8·D + 4·F + H·S + 2) numbers a token")
    told_bytes = 1e9 * float(re.search(r"context 1,024 the model keeps ([\d.]+) GB", kept)[1])
    assert layers_bytes < told_bytes < 1.01 * layers_bytes


def test_levers_are_those_that_lower_the_batch_best_first(make_rows):
    cases = facts.mesh_levers(facts.by_question(make_rows())["mesh"])
    assert cases.index[0] == "given"
    assert cases["tokens"].iloc[1:].is_monotonic_increasing
    assert "weights gathered in 8 bits (50%)" in problem(make_rows(), "communication_accounting (d)")
    # On the best whole split no other one is better.
    best = build(make_rows([Cell(question="mesh")], fsdp_size=8, tensor_size=8)).problems[1].answer
    assert "whole split" not in best


def test_answers_follow_the_settings(make_rows, text):
    words = text(make_rows(gpu_memory_gb=40.0, device_memory_gb=192.0, fsdp_size=8))
    assert "88 GPUs of 40 GB" in words
    assert "less than 192 GB from N = 19 on" in words
    assert "forward pass on 32 devices" in words


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_alone_renders_alone(make_rows, question):
    rows = make_rows()
    alone = build(rows[rows["question"] == question])
    assert [item.name for item in alone.problems] == PROBLEMS[question]
    assert alone.answer


def test_a_mesh_that_is_never_compute_bound_says_so(make_rows, text):
    rows = make_rows([Cell(question="mesh")], fsdp_size=2, tensor_size=32)
    assert "is compute bound at no batch" in problem(rows, "communication_accounting (c)")
    assert not any(isinstance(part, Figure) for part in build(rows).parts)
    assert gaps(text(rows)) == []


def test_devices_too_small_for_any_number_of_them_say_so(make_rows, text):
    words = text(make_rows([Cell(question="fsdp")], device_memory_gb=0.001))
    assert "No number of devices is enough" in words
    assert "from N =" not in words


def test_what_has_no_answer_is_said_with_its_reason(make_rows):
    rows = make_rows([Cell(question="attention", size="XXL"), Cell(question="mesh", size="one_head")])
    assert build(rows).answer == (
        "`attention` of XXL has no answer: XXL has no attention. "
        "`mesh` of one_head has no answer: one_head has no feed-forward layers."
    )
    assert (build(rows).parts, build(rows).problems) == ((), ())


def test_others_are_compared_with_the_same_quantity(make_rows):
    pairs = baselines.pairs(make_rows()).set_index(["write_up", "what"])
    names = {name.split(": ", 1)[1] for _, name in pairs.index}
    assert {"H100 80GB needed", "total fp32", "B=4, S=512"} <= names
    gpus = pairs[pairs.index.get_level_values("what").str.endswith(": H100 80GB needed")]
    assert gpus[["theirs", "ours"]].to_numpy().tolist() == [[41, 44], [44, 44]]
    assert baselines.pairs(make_rows([Cell(question="buckets", size="xl")])).empty
