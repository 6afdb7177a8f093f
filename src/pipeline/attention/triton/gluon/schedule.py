"""Choose how many heads the Gluon kernels process together, in the order of `pieces.work_item`.

With all heads together, tiles come strictly by descending work, and programs are balanced. With a few at a time, data
that is read repeatedly stays in the L2 cache, but every group of heads is a run from most to least work: if a run is,
for example, nearly two waves of programs long, one program gets the heaviest tile of every run. So the candidates are
tried out here, without a GPU.
"""

import numpy as np

MAX_IMBALANCE = 1.02  # largest load over mean; better balance is not worth more heads
MAX_IMBALANCE_IN_PAIRS = 1.05  # the same; better balance is not worth losing the L2 cache
MOST_ITEMS_TRIED = 1_000_000  # over all candidates: some ten milliseconds


def heads_together(n_matrices: int, work: np.ndarray, programs: int) -> int:
    """Return the fewest heads that balance the programs' work, or if none do, the number that balances it best.

    work: of each tile of a head, in any unit, most first.
    """
    if work[0] == work[-1]:
        return 1
    imbalances = {}
    for heads in range(1, min(n_matrices, max(1, MOST_ITEMS_TRIED // (n_matrices * len(work)))) + 1):
        imbalances[heads] = imbalance(n_matrices, work, programs, heads)
        if imbalances[heads] <= MAX_IMBALANCE:
            break
    return min(imbalances, key=imbalances.__getitem__)


def imbalance(n_matrices: int, work: np.ndarray, programs: int, heads: int) -> float:
    """Return the largest load of a program over the mean load, with `heads` heads together."""
    items = np.arange(n_matrices * len(work))
    first = items // (heads * len(work)) * heads
    tiles = items % (heads * len(work)) // np.minimum(heads, n_matrices - first)
    waves, places = np.divmod(items, programs)
    program = np.where(waves % 2 == 0, places, programs - 1 - places)
    loads = np.bincount(program, weights=work[tiles], minlength=programs)
    return loads.max() / loads.mean()


def is_balanced_in_pairs(n_matrices: int, work: np.ndarray, programs: int) -> bool:
    """Return whether programs are balanced if they take a head's tiles in pairs, most with least work.

    Heads then come one after the other, so that data that is read repeatedly is in the L2 cache.
    """
    pairs = n_matrices * len(work) // 2
    return len(work) % 2 == 0 and -(-pairs // programs) * programs <= MAX_IMBALANCE_IN_PAIRS * pairs
