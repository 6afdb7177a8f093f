import math

import pytest

from pipeline.instruments.sampling.error_limits import STEP_EPS, far_off


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ((0.29, 0.39), None),
        ((0.31, 0.39), "output has a relative error of 0.31, the plain way 0.1, allowed is 0.3"),
        ((0.29, 0.41), "output has an error somewhere of 0.41, the plain way 0.1, allowed is 0.4"),
        ((math.nan, 0.0), "output has a relative error of nan, the plain way 0.1, allowed is 0.3"),
    ],
)
def test_an_error_may_exceed_that_of_the_plain_way_by_a_fixed_factor(error, said):
    assert far_off("output", error, (0.1, 0.1), 1e-3, "the plain way") == said


def test_rounding_is_allowed_where_the_plain_way_is_exact():
    assert far_off("output", (2e-3, 16e-3), (0.0, 0.0), 1e-3, "the plain way") is None
    assert far_off("output", (2.1e-3, 0.0), (0.0, 0.0), 1e-3, "the plain way") is not None


@pytest.mark.parametrize(("error", "is_right"), [(2.33e-5, True), (1e-4, False)])
def test_a_compiled_adamw_step_is_right_and_a_learning_rate_off_by_1e_4_is_wrong(error, is_right):
    said = far_off("output", (error, 3e-5), (8.8e-7, 8.6e-6), STEP_EPS, "the plain way")  # as on an H200
    assert (said is None) == is_right
