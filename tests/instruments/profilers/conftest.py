from contextlib import contextmanager

import pytest

from pipeline.ranges import listening


@pytest.fixture
def opened():
    """Listen to ranges, and give the list of those opened: how many others were open, and the name."""
    seen, depth = [], [0]

    @contextmanager
    def listen(name):
        seen.append((depth[0], name))
        depth[0] += 1
        yield
        depth[0] -= 1

    with listening(listen):
        yield seen
    assert depth == [0]
