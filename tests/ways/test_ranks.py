import pytest
import torch

from pipeline.errors import Skipped
from pipeline.ways.ranks import outcome, together_or_apart

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")


def test_what_fits_together_is_measured_together():
    calls = []

    def measure(things):
        calls.append(list(things))
        return [thing * 2 for thing in things]

    assert together_or_apart(measure, [1, 2, 3]) == [2, 4, 6]
    assert calls == [[1, 2, 3]]


def test_what_does_not_fit_is_an_outcome_and_the_others_have_results():
    def measure(things):
        if 2 in things:
            raise FULL
        return ["measured" for _ in things]

    oom = {"status": "oom", "reason": "CUDA out of memory. Tried to allocate 2 GiB"}
    assert together_or_apart(measure, [1, 2, 3]) == ["measured", oom, "measured"]


def test_a_bug_is_no_outcome_and_a_lack_is_one():
    def measure(things):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        together_or_apart(measure, [1, 2])
    assert outcome(Skipped("needs a compiler")) == {"status": "skipped", "reason": "needs a compiler"}
