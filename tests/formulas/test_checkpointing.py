import math

import pytest

from pipeline.formulas.checkpointing import KINDS, blocks_run_again, inputs_kept_by_forward, reruns


def simulate(num_layers, every, kind):
    """Simulate a backward pass with a set of stored inputs; return the most stored at once, and the blocks rerun.

    A rerun may start only from a stored input, and every block must go backward exactly once, last block first.
    """
    starts = range(0, num_layers, every) if kind != "recursive" or num_layers <= every else (0, (num_layers + 1) // 2)
    stored, most, ran, differentiated = set(starts), 0, 0, []
    for rerun in reruns(num_layers, every, kind):
        assert rerun.start in stored
        assert rerun.inputs == len([start for start in stored if start < rerun.start])
        most, ran = max(most, len(stored)), ran + rerun.blocks
        if rerun.is_segment:
            differentiated += reversed(range(rerun.start, rerun.start + rerun.blocks))
            stored.remove(rerun.start)
        else:
            stored.add(rerun.start + rerun.blocks)
    assert differentiated == list(reversed(range(num_layers)))
    assert stored == set()
    return most, ran


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("every", [1, 2, 3, 7])
@pytest.mark.parametrize("num_layers", [1, 2, 3, 5, 8, 13, 32])
def test_reruns_start_from_stored_inputs_and_reach_every_block(num_layers, every, kind):
    most, ran = simulate(num_layers, every, kind)
    assert ran == blocks_run_again(num_layers, every, kind)
    if kind != "recursive":
        assert (most, ran) == (math.ceil(num_layers / every), num_layers)
        assert most == inputs_kept_by_forward(num_layers, every, kind)


@pytest.mark.parametrize("power", [1, 2, 3, 5, 10])
def test_halving_needs_logarithmically_many_inputs_and_forward_passes(power):
    assert simulate(2**power, 1, "recursive") == (power + 1, 2**power // 2 * (power + 1))


def test_nothing_runs_again_without_checkpoints():
    assert blocks_run_again(8, 0, "segments") == 0
