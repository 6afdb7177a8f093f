"""Describe which keys each query sees, as a band along the diagonal."""

from typing import Literal, NamedTuple

Causal = bool | Literal["bottom_right"]


class Band(NamedTuple):
    """Query i sees the keys j with i + start <= j < i + end; None means no bound."""

    start: int | None
    end: int | None

    @property
    def may_hide_all(self) -> bool:
        """Tell whether a block of keys may be hidden entirely from one query of a tile but not from another."""
        return self.start is not None or self.end not in (None, 1)

    @property
    def shows_first_key(self) -> bool:
        """Tell whether every query sees the first key."""
        return self.start is None and (self.end is None or self.end >= 1)

    def keys_in_reach(self, n_keys: int, block_queries: int) -> int:
        """Return the largest number of keys that a tile of queries goes through."""
        if self.start is None or self.end is None:
            return n_keys
        return min(n_keys, self.end - self.start + block_queries - 1)


FULL = Band(None, None)
CAUSAL = Band(None, 1)


def band_of(is_causal: Causal, window: int | None, n_queries: int, n_keys: int) -> Band:
    """Return the band of a mask, without bounds that hide nothing.

    A query's position is its index; for "bottom_right" it is shifted so that the last query is at the last key. window:
    a query sees only keys closer than this to its position.
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
