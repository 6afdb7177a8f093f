import math

import pytest

from pipeline.stages.accounting.cell import QUESTIONS, Cell
from pipeline.stages.accounting.report import baselines, findings, section

from ..sections import (
    contents,
    drawn_figures,
    faults_of_parts,
    gaps,
    linked_figures,
    numbers_that_stay,
    part,
    prose,
    template_numbers,
    unnamed_rows,
)

KEYS = [
    *("batch_size", "seq_len", "num_devices", "least_devices", "head_dim", "num_heads"),
    *("setting_gpu_memory_gb", "setting_device_memory_gb"),
    *("setting_allreduce_gbytes_per_s", "setting_call_overhead_us"),
]
TITLES = {
    "memory": "communication_accounting (a)",
    "fsdp": "communication_accounting (b)",
    "mesh": "communication_accounting (c)",
    "buckets": "ddp_bucketed_benchmarking (b)",
    "activations": "Activations of a transformer",
    "attention": "pytorch_attention",
}


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Build the section without its figures, which take most of the time."""
    monkeypatch.setattr(section, "draw_all", lambda *_: {})
    return lambda rows: section.build(rows, tmp_path)


@pytest.fixture(scope="module")
def rendered(make_rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    return section.build(make_rows(), folder), folder


def test_the_section_answers_every_question_without_a_gap(rendered):
    text, _ = rendered
    assert all(
        f"### {title}" in text for title in (*TITLES.values(), "communication_accounting (d)", "Others' figures")
    )
    assert gaps(text) == []


def test_every_figure_drawn_is_linked(rendered):
    text, folder = rendered
    assert linked_figures(text, "accounting") == drawn_figures(folder) == {"fsdp", "mesh"}


def test_figures_are_the_same_bytes_when_drawn_again(rendered, make_rows, tmp_path):
    section.build(make_rows(), tmp_path)
    assert contents(tmp_path) == contents(rendered[1])


def test_the_template_has_no_number_outside_its_formulas():
    assert template_numbers(section.TEMPLATE, besides=r"write-up \d|arXiv [\d.]+") == []


def test_no_number_of_the_prose_stays_when_every_figure_is_another(make_rows, build):
    # The binary unit's 7.4%, how many figures others give, write-ups by number, papers by their arXiv number.
    allowed = {"7.4", "30", "0", "1", "2306.1", "1811.07"}
    # What is left are others' figures.
    assert numbers_that_stay(build, make_rows(), KEYS, allowed) == {"41", "34", "641", "879"}


def test_the_section_of_a_part_of_the_cells_is_whole(make_rows, tmp_path_factory):
    assert faults_of_parts(section.build, "accounting", make_rows(), tmp_path_factory) == {}


def test_the_columns_of_rows_tell_the_rows_of_a_cell_apart(make_rows):
    assert unnamed_rows("accounting", make_rows()).empty


def test_the_answers_of_communication_accounting(rendered):
    a, b, c = (prose(part(rendered[0], TITLES[name])).replace("\n", " ") for name in ("memory", "fsdp", "mesh"))
    assert "3,518 GB (3,276 GiB) of state, as much as 44 GPUs of 80 GB hold" in a
    assert "would add 440 GB" in a  # 2 bytes for each of 219,848,638,464 parameters
    assert "Were the GPUs' memory 80 GiB, 41 would hold the state" in a
    assert "each device holds less than 95 GB from N = 38 on" in b
    assert "396 whole ones, or 25,344 tokens over all 64 devices" in c
    assert "320 tokens per device (20,480 overall) are enough" in c


def test_half_of_the_activations_of_the_most_tokens_fill_a_device(make_rows):
    rows = make_rows()
    per_token = findings.memory(findings.answered(rows, "memory"))["activation_bytes_per_token"]
    found = findings.fsdp(findings.answered(rows, "fsdp"))
    assert found["most_tokens"] * per_token / 2 == pytest.approx(1e9 * found["device_memory_gb"])


def test_the_best_buckets_cost_twice_the_root_of_a_transfer_times_a_call(make_rows):
    found = findings.buckets(findings.answered(make_rows(), "buckets"))
    transfer_ms, call_ms = 1e3 * found["gradient_gb"] / found["bandwidth"], 1e-3 * found["call_overhead_us"]
    assert found["overhead_ms"] == pytest.approx(2 * math.sqrt(transfer_ms * call_ms))
    assert found["one_call_ms"] == pytest.approx(transfer_ms + call_ms)
    assert found["gain"] == pytest.approx((transfer_ms + call_ms) / (2 * math.sqrt(transfer_ms * call_ms)))


def test_eager_attention_keeps_all_scores_and_flash_an_output_and_a_sum_a_query(make_rows):
    found = findings.attention(findings.answered(make_rows(), "attention"))
    batch_size, seq_len, head_dim = 8, 16384, 64
    assert (found["batch_size"], found["seq_len"], found["head_dim"]) == (batch_size, seq_len, head_dim)
    assert found["most_gib"] == 2 * 4 * batch_size * seq_len**2 / 2**30  # scores and softmax
    assert found["gain"] == pytest.approx(seq_len / (head_dim + 1))


def test_answers_follow_the_settings(make_rows, build):
    text = prose(build(make_rows(gpu_memory_gb=40.0, device_memory_gb=192.0, fsdp_size=8))).replace("\n", " ")
    assert "as much as 88 GPUs of 40 GB hold" in text
    assert "less than 192 GB from N = 19 on" in text
    assert "over all 32 devices" in text


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_alone_renders_alone(make_rows, build, question):
    rows = make_rows()
    text = build(rows[rows["question"] == question])
    assert TITLES[question] in text
    assert not any(title in text for name, title in TITLES.items() if name != question)


def test_a_mesh_that_is_never_compute_bound_says_so(make_rows, tmp_path):
    text = section.build(make_rows([Cell(question="mesh")], fsdp_size=2, tensor_size=32), tmp_path)
    assert "is compute bound at no batch" in text
    assert "](figures/accounting/mesh.svg)" not in text


def test_devices_too_small_for_any_number_of_them_say_so(make_rows, build):
    text = build(make_rows([Cell(question="fsdp")], device_memory_gb=0.001))
    assert "none is enough" in text
    assert "from N =" not in text


def test_what_has_no_answer_is_said_with_its_reason(make_rows, build):
    text = build(make_rows([Cell(question="attention", size="XXL"), Cell(question="mesh", size="one_head")]))
    assert "`attention` of XXL has no answer: XXL has no attention." in text
    assert "`mesh` of one_head has no answer: one_head has no feed-forward layers." in text
    assert "###" not in text


def test_others_are_compared_with_the_same_quantity(make_rows):
    found = {question: findings.answered(make_rows(), question) for question in QUESTIONS}
    pairs = baselines.beside_ours(found).set_index(["write_up", "quantity"])
    gpus = "H100 80GB needed"
    assert pairs.loc[("write-up 0", gpus), ["theirs", "ours", "agrees"]].tolist() == [41, 44, False]
    assert pairs.loc[("write-up 1", gpus), ["theirs", "ours", "agrees"]].tolist() == [44, 44, True]
    # Printed as the sum of rounded terms: one in the last place is rounding.
    assert pairs.loc[("write-up 1", "total fp32"), "agrees"]
    assert not pairs.loc[("write-up 0", "batch below which it is communication bound"), "agrees"]
    assert pairs.loc[("write-up 1", "B=4, S=512"), "ratio"] == pytest.approx(20352 / 19575, rel=1e-3)


def test_the_limit_of_641_comes_out_of_its_own_inequality(make_rows):
    rows = make_rows([Cell(question="mesh")])
    given = rows[rows["case"] == "given"].iloc[0]
    assert baselines.their_mesh_limit(given) == pytest.approx(642.7, abs=0.1)


def test_others_have_no_counterpart_where_nothing_was_asked(make_rows, build):
    assert "Others' figures" not in build(make_rows([Cell(question="buckets", size="xl")]))
