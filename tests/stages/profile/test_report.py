import pytest

from pipeline.stages.profile.cell import PASSES
from pipeline.stages.profile.report import build

SMALL = {"size": "small", "context_length": 256}
PAIR = ({**SMALL, "precision": "fp32"}, {**SMALL, "precision": "bf16"})


def part(section, name):
    return next(each for each in (*section.parts, *section.for_course) if each.name == name)


@pytest.fixture(scope="session")
def pair(frame_of):
    return frame_of(*PAIR)


def test_the_kinds_of_a_bar_make_up_all_of_its_time(pair):
    for name, whole in (("kinds", "share_pct"), ("passes", "time_ms")):
        chart = part(build(pair, {}), name)
        drawn = chart.drawn.groupby("label", sort=False)[whole].sum()
        categories = pair[(pair["kind"] == "category") & pair["range"].isin(PASSES)]
        wanted = categories.groupby(["precision", "range"], sort=False)["time_ms"].sum()
        assert sorted(drawn) == pytest.approx([100, 100] if name == "kinds" else sorted(wanted))


def test_a_kind_that_is_nowhere_a_hundredth_is_drawn_as_other(pair):
    rare = pair["category"] == "normalisation"
    assert rare.any()
    shares = pair["share_pct"].mask(rare & (pair["kind"] == "category"), 0.4)
    kinds = part(build(pair.assign(share_pct=shares), {}), "kinds").drawn
    assert "normalisation" not in set(kinds["kind_of_work"])
    assert kinds.loc[kinds["category"] == "normalisation", "kind_of_work"].eq("other").all()


def test_the_parts_of_attention_make_up_its_time(pair):
    rows = part(build(pair, {}), "attention_all").rows
    assert len(rows) == 4
    for _, row in rows.iterrows():
        phases = pair[(pair["kind"] == "attention") & (pair["precision"] == row["precision"])]
        of_pass = phases[phases["range"] == row["range"]]
        assert row[["products_ms", "softmax_ms", "mask_ms", "beside_ms"]].sum() == pytest.approx(
            of_pass["time_ms"].sum()
        )
        assert row["times"] == pytest.approx(row["softmax_ms"] / row["products_ms"])


def test_captures_of_a_forward_pass_alone_are_shown_as_such(frame_of):
    found = build(frame_of(*PAIR, fitting=("inference",)), {})
    assert set(part(found, "kinds").rows["range"]) == {"inference"}
    assert set(part(found, "kernels").rows["range"]) == {"forward only"}


def test_a_larger_model_in_lower_precision_leads_at_the_context_that_most_have(frame_of):
    longer = {"size": "small", "context_length": 512, "precision": "bf16"}
    found = build(frame_of(*PAIR, {**PAIR[1], "size": "medium"}, longer), {})
    assert len(part(found, "kinds").rows["label"].unique()) == 3
    assert "medium in bf16" in found.answer


def test_two_profilers_of_a_pass_are_compared_and_their_captures_not_mixed(frame_of):
    found = build(frame_of(PAIR[0], {**PAIR[0], "profiler": "torch"}), {})
    assert len(part(found, "kinds").rows["label"].unique()) == 1
    assert len(part(found, "products").rows) == 1
    assert len(part(found, "forward_times").rows) == 2


def test_a_capture_is_held_against_the_host_s_clock(pair):
    # The frames' host clock reads 1% more than the capture.
    assert list(part(build(pair, {}), "forward_times").rows["off_pct"]) == pytest.approx([100 * (1 / 1.01 - 1)] * 2)


def test_an_unstable_time_without_the_profiler_is_marked(pair):
    is_host = (pair["clock"] == "host") & (pair["precision"] == "bf16")
    rows = pair.assign(status=pair["status"].mask(is_host, "unstable"))
    assert part(build(rows, {}), "forward_times").markdown().count("~") == 1


@pytest.mark.parametrize(
    ("kernel", "shown"),
    [
        ("sm80_xmma_gemm_f32_tilesize64x64x8_stage3_warpsize1x4x1_ffma_execute", "sm80_xmma_gemm_f32_tilesize64x64x8"),
        ("gemm_tilesize64x64x8_stage3_split_k_kernel__5x", "gemm_tilesize64x64x8_split_k"),
        ("softmax_warp_forward", "softmax_warp_forward"),
    ],
)
def test_a_name_of_cublas_ends_with_the_tile(pair, kernel, shown):
    rows = pair.assign(kernel=pair["kernel"].mask(pair["rank"] == 1, kernel))
    assert part(build(rows, {}), "first_kernels").rows["short"].eq(shown).all()


def test_a_layer_is_split_into_its_parts(pair):
    drawn = part(build(pair, {}), "layer").drawn
    assert {"attention scores", "softmax", "final matmul"} <= set(drawn["label"])
