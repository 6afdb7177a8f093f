import sys
from unittest.mock import Mock

import pytest

from pipeline import doctor, peers
from pipeline.errors import Skipped


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that installs a fake package of a peer with a module of the given text."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def install(name, module, text):
        (tmp_path / f"{module}.py").write_text(text)
        folder = tmp_path / f"{peers.PEERS[name].replace('-', '_')}-9.9.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {peers.PEERS[name]}\nVersion: 9.9\n")

    return install


def test_a_missing_peer_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(peers, "version", Mock(side_effect=peers.PackageNotFoundError))
    for name, package in peers.PEERS.items():
        with pytest.raises(Skipped, match=rf"^{package} is not installed: pip install -e '\.\[peers\]'$"):
            peers.load(name, "os")
    assert peers.versions(peers.PEERS) == dict.fromkeys(peers.PEERS, "absent")


def test_a_peer_is_imported_on_demand_or_skipped_with_version_and_cause(installed):
    installed("liger", "a_peer_that_works", "VALUE = 3")
    assert peers.version_of("liger") == "9.9"
    assert "a_peer_that_works" not in sys.modules
    assert peers.load("liger", "a_peer_that_works").VALUE == 3
    installed("torchao", "a_peer_that_fails", "raise ImportError('libcuda.so.1: no such file\\nmore')")
    with pytest.raises(Skipped, match=r"^torchao 9\.9 cannot be imported: libcuda\.so\.1: no such file$"):
        peers.load("torchao", "a_peer_that_fails")


def test_doctor_lists_peers_with_versions_and_how_to_install_missing_ones(monkeypatch):
    monkeypatch.setattr(peers, "version", {"liger-kernel": "9.9", "torchao": "0.18", "flash-attn-4": "4"}.get)
    assert doctor.Check("peers", True, "flash-attn-4 4, liger-kernel 9.9, torchao 0.18") in doctor.findings()
    monkeypatch.setattr(peers, "version", {"liger-kernel": "9.9", "flash-attn-4": "4"}.get)
    for gpus in ([], [object()]):
        found = doctor._check_peers(gpus)
        command = found.remedy or found.detail
        assert not found.ok
        assert found.detail.startswith("flash-attn-4 4, liger-kernel 9.9, torchao not installed")
        assert "install -e '.[peers]'" in command
        assert ("needs a GPU" in command) == (not gpus)
