"""Which keys a query sees, as a band along the diagonal."""

from typing import Literal, NamedTuple

Causal = bool | Literal["bottom_right"]


class Band(NamedTuple):
    """Query i sees the keys from i + start on and before i + end; None is no bound."""

    start: int | None
    end: int | None

    @property
    def may_hide_all(self) -> bool:
        """Tell whether a query of some tile may see none of a block of keys that others see."""
        return self.start is not None or self.end not in (None, 1)

    @property
    def shows_first_key(self) -> bool:
        """Tell whether every query sees the first key."""
        return self.start is None and (self.end is None or self.end >= 1)

    def keys_in_reach(self, n_keys: int, block_queries: int) -> int:
        """Return how many keys a tile of queries goes through at most."""
        if self.start is None or self.end is None:
            return n_keys
        return min(n_keys, self.end - self.start + block_queries - 1)


FULL = Band(None, None)
CAUSAL = Band(None, 1)


def band_of(is_causal: Causal, window: int | None, n_queries: int, n_keys: int) -> Band:
    """Return the band of a mask, without bounds that hide nothing.

    A query's position is its index, for "bottom_right" that in the sequence of keys whose last one the last query is
    at. window: a query sees the keys less than so far from its position.
    """
    position = n_keys - n_queries if is_causal == "bottom_right" else 0
    end = position + 1 if is_causal else None
    start = None
    if window is not None:
        start = position - window + 1
        end = position + window if end is None else end
    if start is not None and n_queries - 1 + start <= 0:
        start = None
    if end is not None and end >= n_keys:
        end = None
    return Band(start, end)
