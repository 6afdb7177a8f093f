import math

import pytest

from pipeline.instruments.sampling.error_limits import far_off


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ((0.29, 0.39), None),
        ((0.31, 0.39), "output has a relative error of 0.31, the plain way 0.1, allowed is 0.3"),
        ((0.29, 0.41), "output has an error somewhere of 0.41, the plain way 0.1, allowed is 0.4"),
        ((math.nan, 0.0), "output has a relative error of nan, the plain way 0.1, allowed is 0.3"),
    ],
)
def test_an_error_may_be_so_many_times_the_plain_ways_and_not_more(error, said):
    assert far_off("output", error, (0.1, 0.1), 1e-3, "the plain way") == said


def test_where_the_plain_way_is_exact_rounding_is_allowed():
    assert far_off("output", (2e-3, 16e-3), (0.0, 0.0), 1e-3, "the plain way") is None
    assert far_off("output", (2.1e-3, 0.0), (0.0, 0.0), 1e-3, "the plain way") is not None
