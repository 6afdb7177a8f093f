import pytest

from pipeline.instruments.machine import cgroups


@pytest.fixture
def write(monkeypatch, tmp_path):
    """Give this process fake cgroups, none at first, and return a function that writes their files."""
    monkeypatch.setattr(cgroups, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cgroups, "OWN_CGROUPS", tmp_path / "own")

    def write_files(own, files):
        if own is not None:
            (tmp_path / "own").write_text(own)
        for name, content in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content}\n")

    return write_files
