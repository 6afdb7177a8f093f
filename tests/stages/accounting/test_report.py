import pandas as pd
import pytest

from pipeline.stages.accounting.cell import QUESTIONS, Cell, Settings
from pipeline.stages.accounting.report import IN_COURSE, build, table

from ..frames import shown
from ..frames import table as of_cell
from ..published import sound

MESH_CHART = "mesh_times"


@pytest.fixture
def rows():
    """The answers to all questions, each derived when its record is read."""
    return sound("accounting")


def parts(rows):
    return shown(build(rows, {}))


def answered(question, **settings):
    return parts(of_cell(Cell(question), Settings(**settings), [{"status": "ok"}]))


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_alone_has_its_table_and_an_answer(rows, question):
    alone = rows[rows["question"] == question]
    assert build(alone, {}).answer
    assert len(table(question, alone).markdown().splitlines()) > 4
    of_course = {question} & set(IN_COURSE)
    assert set(parts(alone)) == of_course | ({MESH_CHART} if question == "mesh" else set())


def test_the_assignments_model_needs_the_stated_gpus_and_one_fewer_is_too_few(rows):
    found = parts(rows)
    state = found["memory"].rows.set_index("bytes_of").loc["state"]
    assert state[["size_bytes", "GPUs_of_GB", "GPUs_of_GiB"]].tolist() == [16 * 219_848_638_464, 44, 41]
    assert answered("memory", gpu_memory_gb=40.0)["memory"].rows["GPUs_of_GB"].max() == 90
    held = found["fsdp"].rows.set_index("seq_len")
    assert list(held["devices"]) == ["38", "46", "61", "156", "none is enough"]
    row, limit = held.loc[4096], 95e9
    sharded, whole = row["state_bytes"] + row["not_sharded_bytes"], row["not_sharded_bytes"]
    assert sharded / 61 + whole < limit <= sharded / 60 + whole
    assert row["on_each_bytes"] == pytest.approx(sharded / 61 + whole)


def test_the_mesh_table_starts_with_the_given_mesh_where_the_chart_lines_cross(rows):
    cases = table("mesh", rows[rows["question"] == "mesh"]).rows
    splits = cases["case"] == "another split"
    assert cases["case"].iloc[0] == "given"
    assert splits.is_monotonic_increasing
    assert cases[~splits]["tokens"].iloc[1:].is_monotonic_increasing
    assert cases["tokens"][splits].dropna().is_monotonic_increasing
    assert cases["tokens_per_device"].iloc[-1] == "never"
    in_course = parts(rows)["mesh"].rows["tokens"]
    assert (in_course <= in_course.iloc[0]).all()
    assert list(answered("mesh", fsdp_size=2, tensor_size=32)) == ["mesh"]
    given = rows[rows["case"] == "given"].iloc[0]
    times = parts(rows)[MESH_CHART].rows.pivot_table("block_ms", "tokens_per_device", "what")
    longer = times["computation"] >= times["communication, sum of both"] * (1 - 1e-9)
    assert list(longer) == list(times.index >= given["tokens_per_device"] * (1 - 1e-9))


def test_bytes_kept_per_token_and_layer_add_up_to_the_models_activations(rows):
    # The formula in course.md: (8·D + 4·F + H·S + 2) numbers per token and layer, and little for the head.
    kept = table("activations", rows[rows["question"] == "activations"]).rows
    row = kept.set_index(["attention", "seq_len"]).loc["eager", 1024]
    numbers = 8 * row["d_model"] + 4 * row["d_ff"] + row["num_heads"] * 1024 + 2
    layers_bytes = 4 * row["num_blocks"] * row["batch_size"] * 1024 * numbers
    assert row["activation_bytes"] - row["head_bytes"] == layers_bytes


def test_fsdp_on_this_machine_uses_measured_products_and_all_gathers(rows):
    ceilings = pd.DataFrame({"dtype": ["bf16", "bf16", "fp8"], "tflops_per_s": [600.0, 700.0, 1200.0]})
    names = ["backend", "collective", "world_size", "busbw_gb_per_s", "status"]
    calls = [("nccl", "all_reduce", 8, 480.0, "ok"), ("nccl", "all_gather", 8, 350.0, "ok")]
    calls += [("nccl", "all_reduce", 2, 140.0, "ok"), ("gloo", "all_gather", 8, 1.0, "ok")]
    other_stages = {"ceilings": ceilings, "collectives": pd.DataFrame(calls, columns=names).assign(impl="torch")}
    here = shown(build(rows, other_stages))["here"].rows.set_index("world_size")
    assert here["tokens"].to_dict() == {2: 2500.0, 8: 1750.0}
    assert here["collective"].to_dict() == {2: "all-reduce", 8: "all-gather"}
