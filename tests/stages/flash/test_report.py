from itertools import product

import pytest

from pipeline.stages.flash.report import build

from ..frames import failed, frame_of, shown, timed

MODEL = {"dtype": "bf16", "head_dim": 64, "seq_len": 4096, "batch_size": 4, "num_heads": 16, "is_causal": True}
HEAD = MODEL | {"batch_size": 1, "num_heads": 1}
SHARED = {"query_heads_per_kv_head": 1, "sdpa_choice": "sdpa_cudnn", "peak_of": "bf16", "clock": "device"}
PHASES = ("forward", "backward", "forward_backward")


def row(impl, median_ms, lone_ms=None, **columns):
    lone = {} if lone_ms is None else {f"{name}_call_ms": lone_ms for name in ("median", "q1", "q3")}
    own = {"impl": impl, "tflops_per_s": 500 / median_ms, "phase": "forward_backward"}
    return timed(median_ms, **SHARED | own | MODEL | lone | columns)


def head(times_ms, **columns):
    """Return rows of one causal head, every phase of each implementation; a time of None is out of memory."""
    named = product(times_ms.items(), PHASES)
    rows = [(ms, SHARED | HEAD | columns | {"impl": impl, "phase": phase}) for (impl, ms), phase in named]
    return [failed(**each) if ms is None else timed(ms, **each) for ms, each in rows]


def build_section(*rows, **other_stages):
    return build(frame_of("flash", rows), other_stages)


def first(section, name="shapes"):
    return shown(section)[name].rows.iloc[0]


def test_ours_is_compared_with_pytorchs_fastest_at_every_shape():
    section = build_section(
        *(row("triton", 1.0), row("sdpa_cudnn", 1.2), row("sdpa_flash", 2.0), row("eager", 9.0)),
        *(row("triton", 1.0, seq_len=512), row("sdpa_cudnn", 0.9, seq_len=512), row("sdpa_flash", 0.8, seq_len=512)),
    )
    found = shown(section)["shapes"].rows.set_index("seq_len")
    assert found["who_peer"].to_dict() == {4096: "cuDNN", 512: "FlashAttention-2"}
    assert found["ratio"].to_dict() == pytest.approx({4096: 1.2, 512: 0.8})
    assert found["verdict"].to_dict() == {4096: "faster", 512: "slower"}
    assert "1 of 2" in section.answer
    assert "One call" not in section.answer  # none was timed
    rates = [(each.what.rpartition(" ")[2], each.value) for each in section.compared]
    assert rates == [("4×16×4096×64", 500.0), ("4×16×512×64", 500.0)]


def test_single_calls_repeats_and_gpus_are_shown_with_the_queued_time():
    section = build_section(row("triton", 0.136, lone_ms=0.505), row("sdpa_cudnn", 0.153, lone_ms=0.351))
    assert first(section)[["verdict", "alone"]].tolist() == ["faster", "slower"]
    assert "0.505 / 0.351" in shown(section)["shapes"].markdown()
    assert "slower at 1" in section.answer
    ours = [row("triton", ms, repeat=number, cards=f"GPU {number}") for number, ms in enumerate((1.0, 1.4, 0.9), 1)]
    section = build_section(
        *ours, *(row("sdpa_cudnn", 1.2, repeat=number, cards=f"GPU {number}") for number in (1, 2, 3))
    )
    assert first(section)[["median_ms", "repeats"]].tolist() == [1.0, 3]
    assert "GPUs used: 3" in shown(section)["shapes"].caption
    assert "0 of 1" in section.answer


def test_flash_attention_4_has_its_own_columns_and_bar_and_is_in_the_answer():
    rows = [row("triton", 1.0), row("sdpa_cudnn", 1.2)]
    section = build_section(*rows, row("fa4", 0.9))
    (beside,) = shown(section)["shapes"].rows.to_dict("records")
    assert (beside["who_peer"], beside["verdict"]) == ("cuDNN", "faster")
    assert beside["fa4"].startswith("0.900, 0.90×")
    assert beside["fa4"].endswith("slower")
    assert "FlashAttention-4" not in shown(build_section(*rows))["shapes"].markdown().partition("\n\n")[2]
    assert set(shown(section)["rates"].rows["who"]) == {"ours", "cuDNN", "FlashAttention-4"}
    assert "FlashAttention-4" not in build_section(*rows).answer
    sides = [build_section(*rows, row("fa4", ms)).answer.partition("FlashAttention-4")[2] for ms in (0.9, 1.5)]
    assert ["at 0 of the 1" in side and "slower at 1" in side for side in sides] == [True, False]
    assert ["at 1 of the 1" in side and "slower at 0" in side for side in sides] == [False, True]
    passes = [row(impl, ms, phase="backward") for impl, ms in {"triton": 1.0, "fa4": 0.8, "sdpa_cudnn": 2.0}.items()]
    found = first(build_section(*rows, row("fa4", 0.9), *passes))[["passes", "fa4_passes"]]
    assert found.tolist() == ["– / 2.00× faster", "– / 0.80× slower"]
    wrong = [failed("wrong", **SHARED | MODEL | {"impl": "fa4", "phase": phase}) for phase in PHASES]
    section = build_section(*rows, *wrong)
    assert first(section)["fa4"] == "wrong"
    assert section.answer == build_section(*rows).answer


def test_sustained_rates_are_shown_side_by_side():
    held = {"triton": 540.0, "sdpa_cudnn": 493.0, "fa4": 557.0}
    rows = [row(impl, 1.0, sustained_tflops_per_s=rate) for impl, rate in held.items()]
    assert first(build_section(*rows))["held"] == "540 / 493 / 557"
    assert first(build_section(*rows[:1], row("sdpa_flash", 0.9)))["held"] == "540 / – / –"
    unfed = [row("triton", 1.0), row("sdpa_cudnn", 1.2, sustained_tflops_per_s=239.0)]
    assert first(build_section(*unfed))["held"] == "– / 239 / –"
    never = build_section(row("triton", 1.0), row("sdpa_flash", 0.9))
    assert "held" not in shown(never)["shapes"].markdown().partition("\n\n")[2]


def test_the_course_table_has_slower_and_failed_rows_and_only_common_lengths():
    rows = [*head({"tiled": 2.0, "eager": 1.0}), *head({"tiled": 2.0, "eager": None}, seq_len=65536)]
    table = shown(build_section(*rows))["grid"]
    found = table.rows[table.rows["seq_len"] == 4096]
    assert found[["ratio", "verdict"]].to_numpy().tolist() == [[pytest.approx(0.5), "slower"]] * len(PHASES)
    assert table.markdown().count("2.00 / OOM") == len(PHASES)
    common = [(dtype, width, 128) for dtype in ("bf16", "fp32") for width in (64, 128)]
    rows = [
        each
        for dtype, width, length in [("bf16", 128, 512), *common]
        for each in head({"triton": 1.0, "eager": 3.0}, dtype=dtype, head_dim=width, seq_len=length)
    ]
    found = shown(build_section(*rows))
    assert [*found["grid"].rows[["dtype", "head_dim", "seq_len"]].drop_duplicates().itertuples(index=False)] == common
    assert len(found["gains"].rows) == len(common) + 1


def test_the_limit_is_a_matmul_in_the_same_precision_and_errors_compare_with_plain():
    products = {"bf16": 800.0, "tf32": 300.0}.items()
    rates = frame_of("ceilings", [timed(1.0, what="matmul", dtype=name, tflops_per_s=rate) for name, rate in products])
    rows = [row("triton", 1.0), row("sdpa_cudnn", 1.2)]
    for each, rate in ((rows, 800.0), ([row | {"dtype": "fp32", "peak_of": "3×TF32"} for row in rows], 100.0)):
        assert [limit.value for limit in shown(build_section(*each, ceilings=rates))["rates"].limits] == [rate]

    def checked(impl, error, **columns):
        return row(impl, 1.0, phase="forward", output_rel_error=error, **columns)

    small = [checked(impl, 1e-4, seq_len=512) for impl in ("triton", "eager")]
    rows = [checked("triton", 1e-3), checked("eager", 2e-3), *small, checked("triton", 9.0, seq_len=8192)]
    found = first(build_section(*rows), "errors")
    assert (found["problems"], found["error"], found["error_peer"]) == (2, 1e-3, 2e-3)
