import pytest

from pipeline.subjects import checking

from ..ranks import host, pytest_collection_finish, pytest_unconfigure  # noqa: F401
from .outside_files import outside_is_forgotten  # noqa: F401


@pytest.fixture
def quick_ranks(host, monkeypatch):  # noqa: F811
    """Check in processes forked from a single-threaded one, which takes milliseconds."""
    monkeypatch.setattr(checking, "run_ranks", host.run_ranks)
