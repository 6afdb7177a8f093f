import numpy as np
import pytest

from pipeline.attention.triton.gluon import schedule
from pipeline.attention.triton.gluon.schedule import (
    MAX_IMBALANCE,
    MOST_ITEMS_TRIED,
    heads_together,
    imbalance,
    is_balanced_in_pairs,
)


def causal_work(length, block, other_block):
    return -(-np.arange(length, 0, -block) // other_block) + 1


@pytest.mark.parametrize(
    ("matrices", "length"), [(64, 4096), (64, 8192), (16, 16384), (192, 1024), (64, 2048), (32, 4096), (16, 131072)]
)
def test_programs_are_balanced_at_model_shapes(matrices, length):
    work = causal_work(length, 128, 64)
    heads = heads_together(matrices, work, programs=132)
    assert imbalance(matrices, work, 132, heads) <= 1.04


def test_no_more_heads_go_together_than_balance_needs():
    work = causal_work(4096, 128, 64)
    together = heads_together(64, work, 132)
    balanced = [imbalance(64, work, 132, heads) <= MAX_IMBALANCE for heads in range(1, together + 1)]
    assert balanced == [False] * (together - 1) + [True]
    assert heads_together(64, np.full(32, 17), 132) == 1  # all tiles have equal work


def test_imbalance_matches_the_items_that_kernels_take():
    """Add up work item by item, as `pieces.work_item` and `pieces.matrix_and_tile` number them."""
    matrices, programs, heads, work = 7, 5, 3, np.array([5, 3, 2, 1])
    loads, seen = np.zeros(programs), set()
    for program in range(programs):
        for i in range(100):
            item = i * programs + (program if i % 2 == 0 else programs - 1 - program)
            if item >= matrices * len(work):
                break
            first, rank = item // (heads * len(work)) * heads, item % (heads * len(work))
            together = min(heads, matrices - first)
            seen.add((first + rank % together, rank // together))
            loads[program] += work[rank // together]
    assert len(seen) == matrices * len(work)
    assert imbalance(matrices, work, programs, heads) == pytest.approx(loads.max() / loads.mean())


def test_no_more_items_are_tried_than_planning_has_time_for(monkeypatch):
    tried = []
    monkeypatch.setattr(schedule, "imbalance", lambda matrices, work, *_: tried.append(matrices * len(work)) or 2.0)
    heads_together(400, np.arange(12, 0, -1), 528)
    assert 0 < sum(tried) <= MOST_ITEMS_TRIED < 400 * 400 * 12


@pytest.mark.parametrize(
    ("matrices", "tiles", "level"),
    [(16, 64, True), (64, 16, True), (3, 44, False), (16, 63, False)],
    ids=["long", "short", "fewer pairs than programs", "a tile that has no partner"],
)
def test_tiles_go_in_pairs_if_that_is_balanced(matrices, tiles, level):
    assert is_balanced_in_pairs(matrices, np.arange(tiles, 0, -1), programs=132) is level
