import functools

import pytest

from pipeline.instruments.machine import peaks

from ..ranks import context, host, pytest_collection_finish, pytest_pyfunc_call, pytest_unconfigure  # noqa: F401
from ..subjects.outside_files import outside_is_forgotten  # noqa: F401

_peak_tflops = functools.cache(peaks.measured_peak_tflops)


@pytest.fixture(autouse=True)
def peaks_measured_once(monkeypatch):
    """Measure a CPU's peaks only once per process, to save time; cells use them just the same."""
    monkeypatch.setattr(peaks, "measured_peak_tflops", _peak_tflops)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The folder for the files that a test module's cells keep."""
    return tmp_path_factory.mktemp("kept")
