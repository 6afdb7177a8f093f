"""The sweep of thresholds, in Triton's interpreter: its times mean nothing, what it compares is what it says."""

import pandas as pd
import pytest
import torch

from pipeline.attention import (
    flash_triton,
    flash_triton_backward_plans,
    flash_triton_configs,
    flash_triton_forward_plans,
)
from pipeline.attention.flash_triton_problem import problem_of
from pipeline.instruments.interleaved import Sample
from pipeline.instruments.timing import StopRule
from pipeline.tuning import thresholds

# Lengths that every threshold has a value on either side of, at head_dims whose tiles or loads depend on length.
INPUTS = {
    (dtype, seq_len, head_dim): torch.empty(1, 1, seq_len, head_dim, dtype=dtype)
    for dtype in (torch.bfloat16, torch.float32)
    for seq_len in (100, 200, 600, 1024, 16384)
    for head_dim in (64, 128)
}


class RecordedLaunch:
    def __init__(self, kernel, programs, _dtypes, scalars, constants, tiles):
        self.made_of = (kernel, programs, scalars, constants, tiles)

    def __eq__(self, other):
        return self.made_of == other.made_of


@pytest.fixture
def recorded(monkeypatch):
    for plans in (flash_triton_forward_plans, flash_triton_backward_plans):
        monkeypatch.setattr(plans, "prepare_launch", RecordedLaunch)
        monkeypatch.setattr(plans, "multiprocessors", lambda _device: 132)


def plans(tensor):
    problem = problem_of(tensor, tensor, tensor, True)
    return flash_triton.forward_plan(problem), flash_triton.backward_plan(problem, *[tensor.stride()] * 4)


@pytest.mark.parametrize("name", thresholds.THRESHOLDS)
def test_the_value_in_use_is_tried_and_every_threshold_is_one_that_plans_go_by(recorded, name):
    values = thresholds.THRESHOLDS[name]
    assert getattr(flash_triton_configs, name) in values
    made = []
    for value in values:
        with thresholds.planned_by(name, value)():
            made.append([plans(tensor) for tensor in INPUTS.values()])
    assert any(plan != made[0] for plan in made)


def test_plans_made_for_a_value_are_kept_for_it_and_for_nothing_else(recorded):
    whole = thresholds.planned_by("FORWARD_CHUNKS", thresholds.NEVER)
    cut = thresholds.planned_by("FORWARD_CHUNKS", thresholds.Chunking(8, 512, 1024))
    in_use = flash_triton.forward_plan
    for _ in range(2):
        for within, is_cut in ((whole, False), (cut, True)):
            with within():
                assert (plans(INPUTS[torch.bfloat16, 16384, 64])[0].chunks > 1) == is_cut
                assert flash_triton.forward_plan.cache_info().misses == 1
    assert flash_triton.forward_plan is in_use


def numbering_sampler(_device):
    """Take as many milliseconds for a work as there are works before it, and one more."""
    works = []

    def sample(work):
        with work.within():
            work.call(work.prepare())
        works.extend([work] if work not in works else [])
        return Sample({"device": works.index(work) + 1.0})

    return sample


@pytest.fixture(scope="module")
def table():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thresholds, "kernel_sampler", numbering_sampler)
        patch.setattr(thresholds, "RULE", StopRule(min_samples=3, max_samples=3, rel_error=0.0, budget_s=0.0))
        patch.setattr(thresholds, "WARMUP_ROUNDS", 0)
        return thresholds.sweep("LONGEST_SHORT_SEQUENCE", "bf16", (1, 2, 40, 16))


def test_each_value_gets_a_row_with_the_time_of_both_passes_beside_the_peers(table):
    assert list(table["value"]) == [str(value) for value in thresholds.THRESHOLDS["LONGEST_SHORT_SEQUENCE"]]
    assert table.loc[table["is_in_use"], "value"].tolist() == ["1024"]
    # Of each both passes, forward first; before all others the peer's, which took 1 and 2 ms.
    assert table["forward_ms"].tolist() == table["forward_over_peer"].tolist() == [3.0, 5.0, 7.0, 9.0, 11.0, 13.0]
    assert table["forward_backward_ms"].tolist() == [4.0, 6.0, 8.0, 10.0, 12.0, 14.0]
    assert table["forward_backward_over_peer"].tolist() == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def test_every_value_computes_what_the_peer_computes(table):
    assert table["rel_error"].between(0, 0.05, inclusive="neither").all()


def test_the_least_over_the_peer_is_marked_in_each_column():
    rows = pd.DataFrame(
        {
            "value": ["a", "b", "a", "b"],
            "is_in_use": [True, False, True, False],
            "forward_over_peer": [0.5, 1.0, 2.0, 0.25],
            "forward_backward_over_peer": [0.5, 1.0, 0.5, 1.0],
        }
    )
    shown = thresholds.with_marks(thresholds.over_all_shapes(rows))
    assert shown.values.tolist() == [["a (in use)", "1.000", "0.500 *"], ["b", "0.500 *", "1.000"]]
