import pytest

from pipeline.cells.samples import why_unstable

STEADY, NOISY = [10.0] * 10, [10.0, 20.0] * 5


@pytest.mark.parametrize(
    ("samples_ms", "slowdowns", "is_stable"),
    [(STEADY, [], True), (NOISY, [], False), (STEADY, ["hw_thermal_slowdown"], False), ([10.0], [], True)],
)
def test_noise_and_slowdowns_make_samples_unstable(samples_ms, slowdowns, is_stable):
    why = why_unstable(samples_ms, slowdowns, unstable_rel_error=0.05)
    assert (why is None) == is_stable
    assert all(reason in why for reason in slowdowns)


def test_turns_that_differ_are_no_single_figure_however_many_samples_they_have():
    assert why_unstable([230.0] * 50 + [292.0] * 50, [], 0.05, turns=2) == "rounds lie 27% apart"
    assert why_unstable([100.0] * 50 + [105.0] * 50, [], 0.05, turns=2) is None
    assert why_unstable([100.0] * 50 + [112.0] * 50, [], 0.05, turns=2) == "rounds lie 12% apart"  # a mean off by 6
    assert why_unstable([230.0] * 50 + [292.0] * 50, [], 0.05) is not None


def test_noise_of_a_phase_that_the_step_would_not_notice_is_no_reason_for_doubt():
    waits_ms = [0.1, 0.2] * 5
    assert why_unstable(waits_ms, [], 0.05)
    assert why_unstable(waits_ms, [], 0.05, step_ms=1.0)
    assert why_unstable(waits_ms, [], 0.05, step_ms=100.0) is None
    assert why_unstable([0.1] * 5 + [0.2] * 5, [], 0.05, turns=2, step_ms=100.0) is None


def test_samples_that_are_not_of_so_many_turns_are_refused():
    with pytest.raises(ValueError, match="9 samples are not of 2 turns"):
        why_unstable([1.0] * 9, [], 0.05, turns=2)
