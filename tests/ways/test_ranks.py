from unittest.mock import Mock

import pytest
import torch

from pipeline.errors import Skipped
from pipeline.ways.ranks import outcome, together_or_apart


def test_things_that_fit_are_measured_together_and_one_too_large_has_an_outcome():
    calls = []

    def measure(things):
        calls.append(list(things))
        if 2 in things:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")
        return [thing * 10 for thing in things]

    assert together_or_apart(measure, [1, 3]) == [10, 30]
    oom = {"status": "oom", "reason": "CUDA out of memory. Tried to allocate 2 GiB"}
    assert together_or_apart(measure, [1, 2, 3]) == [10, oom, 30]
    assert calls == [[1, 3], [1, 2, 3], [1], [2], [3]]


def test_a_bug_is_raised_and_a_missing_requirement_is_an_outcome():
    with pytest.raises(RuntimeError, match="shapes"):
        together_or_apart(Mock(side_effect=RuntimeError("shapes do not match")), [1, 2])
    assert outcome(Skipped("needs a compiler")) == {"status": "skipped", "reason": "needs a compiler"}
