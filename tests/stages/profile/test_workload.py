from collections import defaultdict
from contextlib import contextmanager

import pytest
import torch

from pipeline.ranges import listening
from pipeline.stages.profile import workload
from pipeline.stages.profile.cell import PASSES, Cell

from .conftest import QUICK


@pytest.fixture
def step():
    return workload.build(Cell(size="tiny", context_length=8), QUICK, torch.device("cpu"))


@pytest.fixture
def ran(step):
    """Run two rounds of every pass; return the ranges opened directly inside each range, by its path."""
    opened, inside = [], defaultdict(list)

    @contextmanager
    def listen(name):
        inside["/".join(opened)].append(name)
        opened.append(name)
        yield
        opened.pop()

    with listening(listen):
        workload.run_in_ranges(step, PASSES, rounds=2)
    return inside


def test_an_identical_uncounted_round_comes_first_and_the_backward_pass_by_part_last(ran):
    assert ran[""] == [workload.UNCOUNTED, *PASSES, *PASSES, "backward_by_part"]
    assert ran[workload.UNCOUNTED] == [*PASSES]
    for name in PASSES:
        assert ran[f"{workload.UNCOUNTED}/{name}"] * 2 == ran[name] != []


def test_autograd_launches_from_the_thread_whose_ranges_are_open(step):
    enabled = []
    weight = next(step.model.parameters())
    weight.register_hook(lambda _gradient: enabled.append(torch.autograd.is_multithreading_enabled()))
    workload.run_in_ranges(step, ["train_step"], rounds=1)
    assert enabled
    assert not any(enabled)
    assert torch.autograd.is_multithreading_enabled()


def test_inference_builds_no_graph_and_no_pass_leaves_gradients_behind(step):
    for_backward = []
    step.model.register_forward_hook(lambda _model, _inputs, logits: for_backward.append(logits.requires_grad))
    workload.warm_up(step, ["inference", "forward_backward"], rounds=1)
    assert for_backward == [False, True]
    assert all(weight.grad is None for weight in step.model.parameters())
