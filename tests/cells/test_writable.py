import pytest

from pipeline.cells.writable import check_writable
from pipeline.errors import UserError


def test_a_folder_that_is_there_or_can_be_made_passes(tmp_path):
    check_writable(tmp_path)
    check_writable(tmp_path / "reports/sections")
    assert not (tmp_path / "reports").exists()


def test_a_read_only_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda _path, _mode: False)  # root may write anywhere
    with pytest.raises(UserError) as raised:
        check_writable(tmp_path / "reports")
    assert str(raised.value) == f"{tmp_path}/reports/ cannot be written: {tmp_path} is read-only for this user"


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "reports").write_text("")
    with pytest.raises(UserError, match="reports is no folder"):
        check_writable(tmp_path / "reports/sections")
