import functools

import pytest

from pipeline.instruments.machine import peaks

from ..ranks import context, host, pytest_collection_finish, pytest_pyfunc_call, pytest_unconfigure  # noqa: F401

_peak_tflops = functools.cache(peaks.measured_peak_tflops)


@pytest.fixture(autouse=True)
def peaks_measured_once(monkeypatch):
    """Measure a CPU's peaks once in a process: what cells do with them is the same."""
    monkeypatch.setattr(peaks, "measured_peak_tflops", _peak_tflops)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The folder of the files that the cells of a module keep."""
    return tmp_path_factory.mktemp("kept")
