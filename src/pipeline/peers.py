"""Peers: packages that are measured beside ours if installed. They are an extra, never a dependency."""

import importlib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pipeline.errors import Skipped

EXTRA = "-e '.[peers]'"
INSTALL = f"pip install {EXTRA}"
# The package name of each peer.
PEERS = {"fa4": "flash-attn-4", "liger": "liger-kernel", "torchao": "torchao"}


def version_of(name: str) -> str | None:
    """Return the installed version of a peer, None if it is not installed."""
    try:
        return version(PEERS[name])
    except PackageNotFoundError:
        return None


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return the version of each peer by name, `absent` if it is not installed."""
    return {name: version_of(name) or "absent" for name in names}


def load(name: str, module: str) -> Any:
    """Import a module of a peer; raises Skipped if it is not installed or cannot be imported."""
    package, installed = PEERS[name], version_of(name)
    if installed is None:
        raise Skipped(f"{package} is not installed: {INSTALL}")
    try:
        return importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise Skipped(f"{package} {installed} cannot be imported: {reason}") from error
