"""Check whether processes that a test started, directly or indirectly, have ended."""

import time

import psutil

PATIENCE_S = 60.0  # for what should happen at once


def has_ended(process):
    """Tell whether a process has ended, even if its parent (by now perhaps init) has not reaped it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def assert_ended(processes):
    deadline = time.monotonic() + PATIENCE_S
    while not all(map(has_ended, processes)):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def wait_until(condition, seconds=300.0, observed=None):
    """Wait for a condition; observed: returns what to show if it never comes true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {observed()}" if observed else "waited in vain"
        time.sleep(0.1)
