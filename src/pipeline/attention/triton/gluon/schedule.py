"""How many heads the Gluon kernels go through together: of the order that `pieces.work_item` gives, what can be chosen.

With all heads at once the tiles come strictly from the one with most work to the one with least, and every program has
as much to do as the next. With a few at a time, what they read again and again is still in the L2 cache; but the tiles
come in as many runs from most to least, and where a run is nearly as long as some waves of programs, one program has
the most of every run. So it is tried out, here, without a GPU.
"""

import numpy as np

ENOUGH = 1.02  # more balance than this is not worth more heads
ENOUGH_IN_PAIRS = 1.05  # more balance than this is not worth the L2 cache
MOST_ITEMS_TRIED = 1_000_000  # over all that is tried: some ten milliseconds


def heads_together(n_matrices: int, work: np.ndarray, programs: int) -> int:
    """Return the fewest heads at which the programs have about as much to do, or at which they have most alike.

    work: of each tile of a head, in any unit, most first.
    """
    if work[0] == work[-1]:
        return 1
    imbalances = {}
    for heads in range(1, min(n_matrices, max(1, MOST_ITEMS_TRIED // (n_matrices * len(work)))) + 1):
        imbalances[heads] = imbalance(n_matrices, work, programs, heads)
        if imbalances[heads] <= ENOUGH:
            break
    return min(imbalances, key=imbalances.__getitem__)


def imbalance(n_matrices: int, work: np.ndarray, programs: int, heads: int) -> float:
    """Return how much more than the mean the program with most work has, with so many heads together."""
    items = np.arange(n_matrices * len(work))
    first = items // (heads * len(work)) * heads
    tiles = items % (heads * len(work)) // np.minimum(heads, n_matrices - first)
    waves, places = np.divmod(items, programs)
    program = np.where(waves % 2 == 0, places, programs - 1 - places)
    loads = np.bincount(program, weights=work[tiles], minlength=programs)
    return loads.max() / loads.mean()


def is_level_in_pairs(n_matrices: int, work: np.ndarray, programs: int) -> bool:
    """Tell whether programs have about as much to do where they take pairs of tiles of a head, most and least work.

    Heads then come one after the other, so that what is read again and again is in the L2 cache.
    """
    pairs = n_matrices * len(work) // 2
    return len(work) % 2 == 0 and -(-pairs // programs) * programs <= ENOUGH_IN_PAIRS * pairs
