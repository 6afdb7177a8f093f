import pandas as pd
import pytest

from pipeline.report.table import Table
from pipeline.stages.flash.report import build

from ..frames import failed, frame_of, lacking, shown, timed, written

MODEL = {"dtype": "bf16", "head_dim": 64, "seq_len": 4096, "batch_size": 4, "num_heads": 16, "is_causal": True}
HEAD = MODEL | {"batch_size": 1, "num_heads": 1}
SHARED = {"query_heads_per_kv_head": 1, "phase": "forward_backward", "sdpa_choice": "sdpa_cudnn", "peak_of": "bf16"}


def row(impl, median_ms, lone_ms=None, spread=0.004, **columns):
    lone = {} if lone_ms is None else {f"{name}_call_ms": lone_ms for name in ("median", "q1", "q3")}
    own = {"impl": impl, "tflops_per_s": 500 / median_ms}
    return timed(median_ms, spread, **SHARED | own | MODEL | lone | columns)


def told(*rows, **beside):
    return build(frame_of("flash", rows), beside)


def first(section, name="shapes"):
    return shown(section)[name].rows.iloc[0]


def test_ours_is_beside_the_fastest_of_pytorch_s_at_every_shape():
    section = told(
        *(row("triton", 1.0), row("sdpa_cudnn", 1.2), row("sdpa_flash", 2.0), row("eager", 9.0)),
        *(row("triton", 1.0, seq_len=512), row("sdpa_cudnn", 0.9, seq_len=512), row("sdpa_flash", 0.8, seq_len=512)),
    )
    found = shown(section)["shapes"].rows.set_index("seq_len")
    assert found["who_peer"].to_dict() == {4096: "cuDNN", 512: "FlashAttention-2"}
    assert found["ratio"].to_dict() == pytest.approx({4096: 1.2, 512: 0.8})
    assert found["verdict"].to_dict() == {4096: "faster", 512: "slower"}
    assert "1 of 2" in section.answer


def test_a_lone_call_that_is_slower_stands_beside_the_queued_time_that_is_faster():
    section = told(row("triton", 0.136, lone_ms=0.505), row("sdpa_cudnn", 0.153, lone_ms=0.351))
    found = first(section)
    assert (found["verdict"], found["alone"]) == ("faster", "slower")
    assert "0.505 / 0.351" in shown(section)["shapes"].markdown()
    assert "alone at 0 of 1" in section.answer


def test_a_time_of_three_repeats_is_their_median_and_says_how_many_they_are_and_of_how_many_gpus():
    repeats = [
        row(impl, base * factor, repeat=number, cards=f"GPU {number % 2}")
        for impl, base in (("triton", 1.0), ("sdpa_cudnn", 1.5))
        for number, factor in enumerate((1.0, 1.02, 1.03), 1)
    ]
    found = first(told(*repeats))
    assert found["median_ms"] == pytest.approx(1.02)
    assert found["repeats"] == 3
    assert "GPUs used: 2" in shown(told(*repeats))["shapes"].caption


def test_repeats_that_contradict_each_other_decide_nothing():
    ours = [row("triton", median, repeat=number) for number, median in enumerate((1.0, 1.4, 0.9), 1)]
    theirs = [row("sdpa_cudnn", 1.2, repeat=number) for number in (1, 2, 3)]
    section = told(*ours, *theirs)
    assert first(section)["verdict"] == "undecided"
    assert "0 of 1" in section.answer


def test_flash_attention_4_has_its_own_table_and_a_bar_where_it_was_measured():
    rows = [row("triton", 1.0), row("sdpa_cudnn", 1.2)]
    assert "fa4" not in shown(told(*rows))
    section = told(*rows, row("fa4", 0.9))
    assert first(section)["who_peer"] == "cuDNN"
    assert first(section, "fa4")["verdict"] == "slower"
    assert set(shown(section)["rates"].rows["who"]) == {"ours", "cuDNN", "FlashAttention-4"}


def test_where_plain_attention_is_twice_as_fast_the_course_s_table_says_slower():
    slow = [row("triton", 2.0, **HEAD | {"dtype": "fp32"}), row("eager", 1.0, **HEAD | {"dtype": "fp32"})]
    grid = first(
        told(*slow, *[each | {"phase": phase} for phase in ("forward", "backward") for each in slow]), "grid_fp32"
    )
    assert grid["verdict_forward_backward"] == "slower"
    assert grid["gain"].startswith("0.50×")


def test_the_course_s_tables_have_every_width_and_length_and_what_failed():
    sizes = [(width, length) for width in (16, 128) for length in (128, 65536)]
    rows = [
        timed(1.0, **SHARED | {"impl": impl, "phase": phase}, **HEAD | {"head_dim": width, "seq_len": length})
        for width, length in sizes
        for impl in ("triton", "eager")
        for phase in ("forward", "backward", "forward_backward")
        if (impl, length) != ("eager", 65536)
    ]
    out = [
        failed(**SHARED | {"impl": "eager", "phase": phase}, **HEAD | {"head_dim": width, "seq_len": 65536})
        for width in (16, 128)
        for phase in ("forward", "backward", "forward_backward")
    ]
    table = shown(told(*rows, *out))["grid_bf16"]
    assert list(zip(table.rows["head_dim"], table.rows["seq_len"], strict=True)) == sizes
    assert table.markdown().count("| OOM | OOM | OOM | – | – |") == 2


def test_the_course_s_table_has_the_lengths_of_every_width_and_type_and_each_its_verdict():
    common = [(64, 128), (64, 256), (128, 128)]
    sizes = [("bf16", 128, 512), *((dtype, *size) for dtype in ("bf16", "fp32") for size in common)]
    rows = [
        timed(
            2.0 if (dtype, impl) == ("fp32", "triton") else 1.0,
            **SHARED | {"impl": impl, "phase": phase},
            **HEAD | {"dtype": dtype, "head_dim": width, "seq_len": length},
        )
        for dtype, width, length in sizes
        for impl in ("triton", "eager")
        for phase in ("forward", "backward", "forward_backward")
    ]
    grid = shown(told(*rows))["grid"].rows
    assert list(zip(grid["head_dim"], grid["seq_len"], strict=True)) == [(64, 128), (128, 128)]
    assert set(grid["verdict_fp32"]) == {"slower"}
    assert set(grid["verdict_bf16"]) == {"same"}
    assert grid["ours_fp32"].iloc[0] == "2.00 / 2.00 / 2.00"


def test_the_share_of_a_matrix_product_is_of_the_same_precision():
    products = frame_of("ceilings", [timed(1.0, what="matmul", dtype="bf16", tflops_per_s=800.0)])
    tf32 = frame_of("ceilings", [timed(1.0, what="matmul", dtype="tf32", tflops_per_s=300.0)])
    rows = [row("triton", 1.0), row("sdpa_cudnn", 1.2)]
    three = [each | {"dtype": "fp32", "peak_of": "3×TF32"} for each in rows]
    rates = pd.concat([products, tf32], ignore_index=True)
    section = told(*rows, *three, ceilings=rates)
    assert shown(section)["shapes"].rows["product_pct"].tolist() == pytest.approx([62.5, 500.0])
    assert [limit.value for limit in shown(section)["rates"].limits] == [800.0]


def test_errors_are_compared_only_where_plain_attention_has_one_too():
    def checked(impl, error, **columns):
        return row(impl, 1.0, phase="forward", output_rel_error=error, **columns)

    section = told(checked("triton", 1e-3), checked("eager", 2e-3), checked("triton", 9.0, seq_len=8192))
    found = first(section, "errors")
    assert (found["problems"], found["output_rel_error"], found["output_rel_error_peer"]) == (1, 1e-3, 2e-3)


def test_the_change_is_from_what_sdpa_picks_by_itself():
    [change] = told(row("triton", 1.0), row("sdpa_cudnn", 1.2), row("sdpa_flash", 1.1)).changes
    assert change.judged["ratio"] == pytest.approx(1.2)
    assert "queued" in change.where


@pytest.mark.parametrize(
    "rows",
    [
        [row("triton", 1.0)],
        [row("eager", 1.0)],
        [row("sdpa_cudnn", 1.0), failed("wrong", **SHARED, **MODEL, impl="triton")],
        [row("triton", 1.0, **HEAD)],
        [row("triton", 1.0, phase="forward"), row("sdpa_cudnn", 1.2, phase="forward")],
        [row("tiled", 3.0, **HEAD | {"dtype": "fp32"}), row("sdpa", 1.0, **HEAD | {"dtype": "fp32"})],
    ],
)
def test_any_part_of_the_rows_makes_a_whole_section(rows):
    section = told(*rows)
    assert section.answer
    assert "nan" not in written(section)


def test_the_course_s_page_asks_for_nothing_that_the_section_never_has():
    every = [
        row(impl, 1.0, **problem) for problem in (MODEL, HEAD, HEAD | {"dtype": "fp32"}) for impl in ("triton", "eager")
    ]
    assert lacking(told(*every), "flash") == set()


@pytest.mark.parametrize("more", [[], [row("fa4", 1.1)]])
def test_the_page_has_two_tables_that_fit_and_shows_nothing_twice(more):
    heads = [row(impl, 1.0, **HEAD | {"dtype": dtype}) for impl in ("triton", "eager") for dtype in ("bf16", "fp32")]
    for rows in (heads, [*heads, row("triton", 1.0), row("sdpa_cudnn", 1.2), *more]):
        section = told(*rows)
        tables = [part for part in section.parts if isinstance(part, Table)]
        assert len(tables) <= 2
        assert max(len(table.columns) for table in tables) <= 10
        names = [part.name for part in (*section.parts, *section.for_course)]
        assert len(names) == len(set(names))
