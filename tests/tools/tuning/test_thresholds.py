"""The sweep of thresholds, run in Triton's interpreter: its times mean nothing, but its comparisons are right."""

from dataclasses import replace

import pandas as pd
import pytest
import torch

from pipeline.attention.triton import backward_plan, forward_plan, gpu
from pipeline.attention.triton.gpu import INTERPRETER
from pipeline.attention.triton.problem import problem_of
from pipeline.attention.triton.tiles import IN_USE, Chunking
from pipeline.instruments.sampling.interleaving import Sample
from pipeline.instruments.sampling.step_timing import StopRule
from tools.tuning import thresholds

# Lengths such that every threshold has values on both sides, at head_dims whose tiles or loads depend on length.
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
    monkeypatch.setattr(gpu, "_gpu_of", lambda _device: replace(INTERPRETER, multiprocessors=132))
    for plans in (forward_plan, backward_plan):
        monkeypatch.setattr(plans, "prepare_launch", RecordedLaunch)


def plans(tensor, choices):
    problem, layouts = problem_of(tensor, tensor, tensor, True), [tensor.stride()] * 4
    forward = forward_plan.forward_plan(problem, choices=choices)
    return forward, backward_plan.backward_plan(problem, *layouts, choices=choices)


@pytest.mark.parametrize("name", thresholds.THRESHOLDS)
def test_the_value_in_use_is_tried_and_every_threshold_changes_a_plan(recorded, name):
    values = thresholds.THRESHOLDS[name]
    assert getattr(IN_USE, name) in values
    choices = [thresholds.choices_with(name, value) for value in values]
    first, *others = ([plans(tensor, each) for tensor in INPUTS.values()] for each in choices)
    assert any(plan != first for plan in others)


def test_plans_are_cached_separately_for_each_set_of_choices(recorded):
    whole = thresholds.choices_with("forward_chunks", thresholds.NEVER)
    cut = thresholds.choices_with("forward_chunks", Chunking(8, 512, 1024))
    tensor = INPUTS[torch.bfloat16, 16384, 64]
    first = [plans(tensor, choices) for choices in (whole, cut)]
    assert [forward.combine is not None for forward, _ in first] == [False, True]
    again = [plans(tensor, choices) for choices in (whole, cut)]
    assert all(a is b for before, after in zip(first, again, strict=True) for a, b in zip(before, after, strict=True))


def numbering_sampler(_device):
    """Report n ms for the nth work."""
    works = []

    def sample(work):
        with work.within():
            work.call(work.prepare())
        works.extend([work] if work not in works else [])
        return Sample({"device": works.index(work) + 1.0})

    return sample


def test_each_value_gets_a_row_with_times_and_ratios_of_both_passes_and_its_error(monkeypatch):
    monkeypatch.setattr(thresholds, "kernel_sampler", numbering_sampler)
    monkeypatch.setattr(thresholds, "RULE", StopRule(min_samples=3, max_samples=3, rel_error=0.0, budget_s=0.0))
    monkeypatch.setattr(thresholds, "WARMUP_ROUNDS", 0)
    table = thresholds.sweep("longest_short_sequence", "bf16", (1, 2, 40, 16))
    assert list(table["value"]) == [str(value) for value in thresholds.THRESHOLDS["longest_short_sequence"]]
    assert table.loc[table["is_in_use"], "value"].tolist() == ["1024"]
    # The peer's two passes come first and take 1 and 2 ms; then both passes of each value, forward first.
    assert table["forward_ms"].tolist() == table["forward_over_peer"].tolist() == [3.0, 5.0, 7.0, 9.0, 11.0, 13.0]
    assert table["forward_backward_ms"].tolist() == [4.0, 6.0, 8.0, 10.0, 12.0, 14.0]
    assert table["forward_backward_over_peer"].tolist() == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert table["rel_error"].between(0, 0.05, inclusive="neither").all()


def test_the_lowest_ratio_to_the_peer_is_marked_in_each_column():
    columns = ["value", "is_in_use", "forward_over_peer", "forward_backward_over_peer"]
    rows = [("a", True, 0.5, 0.5), ("b", False, 1.0, 1.0), ("a", True, 2.0, 0.5), ("b", False, 0.25, 1.0)]
    rows = pd.DataFrame(rows, columns=columns)
    shown = thresholds.with_marks(thresholds.over_all_shapes(rows))
    assert shown.values.tolist() == [["a (in use)", "1.000", "0.500 *"], ["b", "0.500 *", "1.000"]]
