import pandas as pd
import pytest

from pipeline.report.figures import new_figure
from pipeline.report.heatmap import ratio_map

ROWS = pd.DataFrame(
    [
        {"seq_len": 512, "head_dim": 16, "median_ratio": 2.0, "status": "ok"},
        {"seq_len": 16384, "head_dim": 16, "median_ratio": 0.5, "status": "unstable"},
        {"seq_len": 16384, "head_dim": 64, "median_ratio": None, "status": "oom"},
    ]
)


@pytest.fixture
def axes():
    _, panels = new_figure()
    ratio_map(panels[0, 0], ROWS, "seq_len", "head_dim", "head_dim")
    return panels[0, 0]


def test_every_point_shows_its_ratio_or_its_outcome_and_a_missing_one_nothing(axes):
    shown = {text.get_position(): text.get_text() for text in axes.texts}
    assert shown == {(0, 0): "2.0", (1, 0): "0.50", (0, 1): "", (1, 1): "OOM"}


def test_a_ratio_and_its_inverse_are_as_far_from_white_on_either_side(axes):
    (image,) = axes.images
    low, high = (image.norm(value) for value in (image.get_array()[0, 1], image.get_array()[0, 0]))
    assert (low - 0.5, high - 0.5) == pytest.approx((-(high - 0.5), high - 0.5))
    assert high > 0.5


def test_lengths_are_written_short(axes):
    assert [label.get_text() for label in axes.get_xticklabels()] == ["512", "16k"]
