import sys
from pathlib import Path

import pytest

from tools.tuning.command_line import parsed


def test_shapes_are_read_as_numbers(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sweep", "forward", "bf16", "1,16,2048,64", "2,1,128,32", "--out", "table.csv"])
    found = parsed("", "kernel", ["forward"])
    assert (found.kernel, found.dtype, found.out) == ("forward", "bf16", Path("table.csv"))
    assert found.shapes == [(1, 16, 2048, 64), (2, 1, 128, 32)]


@pytest.mark.parametrize("shape", ["1,16,2048", "1,16,2048,x", "1,16,0,64"])
def test_an_invalid_shape_is_refused_with_what_is_allowed(monkeypatch, capsys, shape):
    monkeypatch.setattr(sys, "argv", ["sweep", "forward", "bf16", shape])
    with pytest.raises(SystemExit):
        parsed("", "kernel", ["forward"])
    assert f"must be four whole numbers from 1, as in 1,16,16384,64, got '{shape}'" in capsys.readouterr().err
