import pytest
import torch

from pipeline.cells.on_ranks import together_or_apart


def test_what_fits_together_is_measured_together():
    calls = []

    def measure(things):
        calls.append(list(things))
        return {thing: thing * 2 for thing in things}

    assert together_or_apart(measure, [1, 2, 3]) == {1: 2, 2: 4, 3: 6}
    assert calls == [[1, 2, 3]]


def test_what_does_not_fit_is_an_outcome_and_the_others_have_results():
    def measure(things):
        if 2 in things:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")
        return dict.fromkeys(things, "measured")

    found = together_or_apart(measure, [1, 2, 3])
    assert found[1] == found[3] == "measured"
    assert isinstance(found[2], MemoryError)
    assert str(found[2]) == "CUDA out of memory. Tried to allocate 2 GiB"


def test_a_bug_is_no_outcome():
    def measure(things):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        together_or_apart(measure, [1, 2])
