import pytest

from tools.by_hand.tables import beside, instead_of_checkpoints, times


def turn(change, median_ms, context=16):
    return {"change": change, "context": context, "status": "ok", "median_ms": median_ms, "samples_ms": [median_ms]}


def test_a_speed_up_is_relative_to_the_mean_of_both_eager_steps_at_its_context():
    records = [turn("eager", 9.0), turn("fused", 5.0), turn("fused", 5.0, 32), turn("eager", 11.0)]
    assert times(records)["speed_up"].fillna(0).tolist() == pytest.approx([10 / 9, 2.0, 0, 10 / 11])


def test_the_pipelines_times_of_the_same_changes_are_put_beside_ours(tmp_path):
    heads = "levers,status,median_ms,context_length,setting_batch_size,precision"
    times = "eager,ok,30 fused,ok,20 fused,ok,22 fused,ok,21 compile,ok,10 eager_again,ok,54 sdpa,oom,"
    others = ["fused,ok,1,16,1,fp32", "fused,ok,1,32,1,bf16"]
    rows = [heads, *(f"{row},16,1,bf16" for row in times.split()), *others]
    (tmp_path / "tiny.csv").write_text("\n".join(rows), "utf-8")
    records = [turn("eager", 9.0), turn("fused", 5.0), turn("sdpa", 4.0), turn("eager", 11.0)]
    found = beside(records, tmp_path / "tiny.csv", 16, 1).set_index("change")
    assert list(found.index) == ["eager", "fused"]
    expected = {"by_hand_ms": 5, "pipeline_ms": 21, "by_hand_speed_up": 2, "pipeline_speed_up": 2}
    assert found.loc["fused"].to_dict() == pytest.approx(expected | {"by_hand_over_pipeline": 1})
    assert beside(records[1:3], tmp_path / "tiny.csv", 16, 1)["by_hand_speed_up"].isna().all()


def test_flash_attention_is_compared_with_checkpointing_only_at_the_same_context():
    found = instead_of_checkpoints([turn("checkpointing", 8.0), turn("flash", 4.0), turn("flash", 1.0, 32)])
    assert found[["context", "speed_up"]].to_numpy().tolist() == [[16, 2.0]]
