import pytest

from pipeline.stages.profile.cell import PASSES
from pipeline.stages.profile.report import build

from ..frames import shown

SMALL = {"size": "small", "context_length": 256}
PAIR = ({**SMALL, "precision": "fp32"}, {**SMALL, "precision": "bf16"})


def part(section, name):
    return shown(section)[name]


@pytest.fixture(scope="session")
def pair(frame_of):
    return frame_of(*PAIR)


def test_the_kinds_of_a_bar_make_up_all_of_its_time_and_one_that_is_nowhere_a_hundredth_is_other(pair):
    assert list(part(build(pair, {}), "kinds").rows.groupby("label")["share_pct"].sum()) == pytest.approx([100, 100])
    is_rare = (pair["category"] == "normalisation") & (pair["kind"] == "category")
    kinds = part(build(pair.assign(share_pct=pair["share_pct"].mask(is_rare, 0.4)), {}), "kinds").rows
    assert set(kinds.loc[kinds["category"] == "normalisation", "kind_of_work"]) == {"other"}


def test_the_parts_of_attention_make_up_its_time(pair):
    rows = part(build(pair, {}), "attention").rows
    assert len(rows) == 4
    for _, row in rows.iterrows():
        phases = pair[(pair["kind"] == "attention") & (pair["precision"] == row["precision"])]
        of_pass = phases[(phases["range"] == "inference") == (row["part"] == "forward")]
        assert row[["matmul_ms", "mask_ms", "time_ms", "beside_ms"]].sum() == pytest.approx(of_pass["time_ms"].sum())
        assert row["times"] == pytest.approx(row["time_ms"] / row["matmul_ms"])


def test_captures_of_a_forward_pass_alone_are_shown_as_such(frame_of):
    found = build(frame_of(*PAIR, fitting=("inference",)), {})
    assert set(part(found, "kinds").rows["range"]) == {"inference"}
    assert set(part(found, "kernels").rows["part"]) == {"forward only"}


def test_a_larger_model_in_lower_precision_leads_at_the_context_that_most_have(frame_of):
    longer = {"size": "small", "context_length": 512, "precision": "bf16"}
    found = build(frame_of(*PAIR, {**PAIR[1], "size": "medium"}, longer), {})
    assert len(part(found, "kinds").rows["label"].unique()) == 3
    assert set(part(found, "kinds").rows["range"]) == {PASSES[-1]}
    assert "medium in bf16" in found.answer


def test_captures_of_two_profilers_are_not_mixed(frame_of):
    found = build(frame_of(PAIR[0], {**PAIR[0], "profiler": "torch"}), {})
    assert len(part(found, "kinds").rows["label"].unique()) == 1
    assert len(part(found, "shares").rows) == len(PASSES)
    assert set(part(found, "forward_times").rows["profiler"]) == {"auto"}


def test_a_capture_is_held_against_the_host_s_clock_and_an_unstable_time_is_marked(pair):
    # The frames' host clock reads 1% more than the capture.
    is_host = (pair["clock"] == "host") & (pair["precision"] == "bf16")
    table = part(build(pair.assign(status=pair["status"].mask(is_host, "unstable")), {}), "forward_times")
    assert list(table.rows["off_pct"]) == pytest.approx([100 * (1 / 1.01 - 1)] * 2)
    assert table.markdown().count("~") == 1
