import pytest

from pipeline.stages.sharding.report import OURS, PLAIN, TORCHS, build

from ..section_parts import faults, parts


@pytest.mark.parametrize("name", ["h200", "small_gpu", "smoke"])
def test_the_section_is_whole_on_whatever_was_measured(request, name, tmp_path):
    section = build(request.getfixturevalue(name), {})
    assert faults(section, tmp_path) == {}


def test_each_moment_has_its_own_peak(h200):
    moments = parts(build(h200, {}))["moments"].rows.set_index(["way", "moment"])
    lead = h200[(h200["precision"] == "bf16") & (h200["kind"] == "peak")].set_index(["impl", "moment"])
    for way, impl in ((PLAIN, "adamw"), (OURS, "sharded"), (TORCHS, "torch_zero")):
        for moment in ("initialised", "before_step", "after_step"):
            assert moments.loc[(way, moment), "peak"] == lead.loc[(impl, moment), "measured_bytes"]
    assert moments.loc[(OURS, "initialised"), "optimizer_state"] == 0


def test_a_ranks_memory_is_the_highest_of_all_moments_and_its_state_that_after_a_step(h200):
    steps = parts(build(h200, {}))["ways_1"].rows.set_index("way")
    own = h200[(h200["precision"] == "bf16") & (h200["impl"] == "sharded")]
    assert steps.loc[OURS, "rank_bytes"] == own.loc[own["kind"] == "peak", "measured_bytes"].max()
    after = own[(own["moment"] == "after_step") & own["kind"].isin(["parameters", "gradients", "optimizer_state"])]
    assert steps.loc[OURS, "state_bytes"] == after["measured_bytes"].sum()


def test_ours_sends_gradients_once_and_parameters_once_where_zero_sends_one_all_reduce(h200):
    traffic = parts(build(h200, {}))["asked"].rows.set_index("way")
    assert traffic.loc[PLAIN, "times"] == 1
    assert traffic.loc[OURS, "times"] == pytest.approx(1.5)


def test_an_optimizer_that_does_not_fit_is_no_side_of_a_comparison(small_gpu):
    section = build(small_gpu, {})
    assert section.changes == []
    assert parts(section)["ways_1"].rows["verdict"].isna().all()


def test_weights_further_apart_than_rounding_do_not_agree(h200):
    off = h200.assign(weight_difference=h200["weight_difference"].mask(h200["impl"] == "sharded", 1.0))
    agree = parts(build(off, {}))["ways_1"].rows.set_index("way")["agree"]
    assert agree.to_dict() == {PLAIN: "yes", OURS: "no", TORCHS: "yes"}
