"""What a process started is killed once it is gone, shown by real processes; `sleep` stands for what measures."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ..processes import assert_ended, has_ended

ROOT = Path(__file__).parents[2]
# Prints the processes that it started: the watcher, which ends too, one of its own group, one of a session of its own,
# and one that nobody waits for, as nsys has them.
PARENT = """
import os, psutil, subprocess, sys, time
from pipeline.cells import orphans
orphans.end_with_this_process()
watcher = psutil.Process().children()[0].pid
own_group = subprocess.Popen(["sleep", "60"]).pid
own_session = subprocess.Popen(["sleep", "60"], start_new_session=True).pid
left_alone = subprocess.run(["sh", "-c", "setsid sleep 60 >/dev/null & echo $!"], stdout=-1, text=True).stdout
print(watcher, own_group, own_session, left_alone.strip(), flush=True)
"""
WAITING = f"{PARENT}time.sleep(60)"
# Prints its own number and what another that does the same started.
OUTER = f"""
import os, subprocess, sys
from pipeline.cells import orphans
orphans.end_with_this_process()
inner = subprocess.Popen([sys.executable, "-c", {WAITING!r}], stdout=subprocess.PIPE, text=True)
print(inner.pid, inner.stdout.readline(), flush=True)
inner.wait()
"""


def start(script):
    """Start a script that prints numbers of processes; return it and these."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", script]
    parent = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    return parent, [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]


@pytest.mark.parametrize(
    ("script", "end", "number"),
    [
        (WAITING, os.kill, signal.SIGKILL),
        (WAITING, os.killpg, signal.SIGKILL),
        (WAITING, os.kill, signal.SIGHUP),
        (PARENT, None, 0),  # at its own end
    ],
)
def test_what_a_process_started_ends_with_it_wherever_it_went(script, end, number):
    parent, started = start(script)
    if end:
        assert not any(map(has_ended, started))
        end(parent.pid, number)
    assert parent.wait(20) == -number
    assert_ended(started)


def test_a_process_that_was_started_by_another_of_its_kind_ends_with_it_and_so_does_what_it_started():
    outer, started = start(OUTER)
    outer.kill()
    outer.wait()
    assert_ended(started)


def test_what_others_started_goes_on():
    (first, started_by_first), (second, started_by_second) = start(WAITING), start(WAITING)
    first.kill()
    first.wait()
    assert_ended(started_by_first)
    assert not any(map(has_ended, started_by_second))
    second.kill()
    second.wait()
    assert_ended(started_by_second)
