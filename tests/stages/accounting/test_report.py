import math

import pandas as pd
import pytest

from pipeline.stages.accounting.cell import QUESTIONS, Cell
from pipeline.stages.accounting.report import build

MESH_CHART = "mesh_times"


def parts(rows):
    section = build(rows, {})
    return {part.name: part for part in (*section.parts, *section.for_course) if not part.is_empty}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_alone_has_its_table_and_an_answer(make_rows, question):
    rows = make_rows()
    alone = rows[rows["question"] == question]
    assert build(alone, {}).answer
    assert set(parts(alone)) == {question, *([MESH_CHART] if question == "mesh" else [])}
    assert parts(alone)[question].markdown() == parts(rows)[question].markdown()


def test_the_state_of_the_assignments_model_and_the_gpus_that_hold_it(make_rows):
    state = parts(make_rows())["memory"].rows.set_index("what").loc["training state: all of these"]
    assert state["bytes"] == 16 * 219_848_638_464
    assert (state["gpus"], state["gpus_of_gib"]) == (44, 41)
    assert parts(make_rows(gpu_memory_gb=40.0))["memory"].rows["gpus"].max() == 90


def test_a_device_less_would_not_hold_what_is_sharded(make_rows):
    held = parts(make_rows())["fsdp"].rows.set_index("seq_len")
    assert list(held["least"]) == ["38", "46", "61", "156", "none is enough"]
    row, limit = held.loc[4096], 95e9
    sharded, whole = row["state_bytes"] + row["half_bytes"], row["half_bytes"]
    assert sharded / 61 + whole < limit <= sharded / 60 + whole
    assert row["held_bytes"] == pytest.approx(sharded / 61 + whole)


def test_the_given_mesh_leads_and_what_is_never_compute_bound_ends_the_table(make_rows):
    cases = parts(make_rows())["mesh"].rows
    assert cases["case"].iloc[0] == "given"
    assert cases["tokens"].iloc[1:].dropna().is_monotonic_increasing
    assert cases["per_device"].iloc[-1] == "never"


def test_a_mesh_that_is_never_compute_bound_has_no_chart(make_rows):
    found = parts(make_rows([Cell(question="mesh")], fsdp_size=2, tensor_size=32))
    assert list(found) == ["mesh"]
    assert found["mesh"].rows["per_device"].iloc[0] == "never"


def test_computing_takes_longer_than_communicating_from_the_told_batch_on(make_rows):
    rows = make_rows()
    given = rows[rows["case"] == "given"].iloc[0]
    times = parts(rows)[MESH_CHART].rows.pivot_table("block_ms", "tokens_per_device", "what")
    longer = times["computation"] >= times["communication, both in turn"] * (1 - 1e-9)
    assert list(longer) == list(times.index >= given["tokens_per_device"] * (1 - 1e-9))


def test_whole_devices_are_at_most_the_exact_limit_and_more_in_the_backward_pass_where_width_is_divided(make_rows):
    table = parts(make_rows())["parallel"].rows
    assert (table["whole_devices"] <= table["most_devices"]).all()
    assert (table["whole_devices"] == table["whole_batch_shares"] * table["whole_width_shares"]).all()
    whole = table.set_index(["strategy", "axes_overlap", "phase"])["whole_devices"].unstack("phase")
    divides_width = whole.index.get_level_values("strategy").str.contains("tensor")
    assert (whole["backward"] > whole["forward"]).tolist() == divides_width.tolist()


def test_the_best_number_of_buckets_beats_its_neighbours(make_rows):
    table = parts(make_rows())["buckets"].rows
    best = table[table["case"] == "best"].iloc[0]
    transfer_ms = best["gradient_bytes"] / 1e6 / best["setting_allreduce_gbytes_per_s"]
    assert best["overhead_ms"] == pytest.approx(2 * math.sqrt(transfer_ms * 1e-3 * best["setting_call_overhead_us"]))
    assert best["overhead_ms"] == table["overhead_ms"].min()


def test_whole_tensors_take_half_as_many_times_as_long_as_there_are_devices(make_rows):
    table = parts(make_rows())["ring"].rows
    assert table["ratio"].tolist() == pytest.approx((table["num_devices"] / 2).tolist())


def test_what_a_layer_keeps_of_a_token_adds_up_to_what_the_model_keeps(make_rows):
    # The formula of course.md: (8·D + 4·F + H·S + 2) numbers a token and layer, and little for the head.
    table = parts(make_rows())["activations"].rows.set_index(["attention", "seq_len"])
    row = table.loc["eager", 1024]
    numbers = 8 * row["d_model"] + 4 * row["d_ff"] + row["num_heads"] * 1024 + 2
    layers_bytes = 4 * row["num_blocks"] * row["batch_size"] * 1024 * numbers
    assert row["activation_bytes"] - row["head_bytes"] == layers_bytes


def test_flash_keeps_an_output_and_a_sum_a_query_where_eager_keeps_all_scores(make_rows):
    kept = parts(make_rows())["attention"].rows.set_index(["attention", "seq_len"])["kept_bytes"]
    assert kept["eager", 16384] / kept["flash", 16384] == pytest.approx(16384 / (64 + 1))


def test_what_has_no_answer_leaves_the_others_whole(make_rows):
    rows = make_rows([Cell(question="attention", size="XXL"), Cell(question="memory")])
    assert list(parts(rows)) == ["memory"]


def test_fsdp_on_this_machine_takes_the_measured_products_and_all_gathers(make_rows):
    ceilings = pd.DataFrame({"dtype": ["bf16", "bf16", "fp8"], "tflops_per_s": [600.0, 700.0, 1200.0]})
    collectives = pd.DataFrame(
        {
            "backend": ["nccl", "nccl", "nccl", "gloo"],
            "collective": ["all_gather", "all_reduce", "all_reduce", "all_gather"],
            "world_size": [8, 8, 2, 8],
            "busbw_gb_per_s": [350.0, 480.0, 140.0, 1.0],
            "status": "ok",
        }
    )
    section = build(make_rows(), {"ceilings": ceilings, "collectives": collectives})
    here = next(part for part in section.parts if part.name == "here").rows.set_index("ranks")
    assert here["tokens"].to_dict() == {2: 5000.0, 8: 2000.0}
    assert here["of"].to_dict() == {2: "all-reduce", 8: "all-gather"}
