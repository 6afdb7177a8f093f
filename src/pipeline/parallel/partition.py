"""Share things of different sizes out evenly."""


def least_loaded(sizes: list[int], loads: list[int]) -> list[int]:
    """Give each thing, the largest first, to the bin with the smallest load; return the bin of each.

    The loads are added to. Ties go to the earlier thing and the lower bin, so that the result depends on the
    arguments alone. Largest first ends within 4/3 of the best possible greatest load (Graham 1969).
    """
    bins = [0] * len(sizes)
    for position in sorted(range(len(sizes)), key=lambda position: -sizes[position]):
        lightest = min(range(len(loads)), key=loads.__getitem__)
        bins[position] = lightest
        loads[lightest] += sizes[position]
    return bins
