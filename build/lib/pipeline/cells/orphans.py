"""End what a Snakemake leaves running when it dies, however suddenly: its cells, their ranks, their profilers.

A process beside Snakemake waits for its end. It tells what Snakemake started by an environment variable, which all
its descendants inherit, also those that leave its process group and session, as the program under nsys does. Cells of
the warm worker end with their callers: see pipeline.worker.server.
"""

import contextlib
import os
import secrets
import subprocess
import sys
import time

SNAKEMAKE_VARIABLE = "PIPELINE_SNAKEMAKE"
# A process on its way from fork to exec does not show its variables yet.
SCANS = 2
BETWEEN_SCANS_S = 0.2
GIVE_UP_S = 60.0  # a process may be stuck in a driver


def end_with_this_process() -> None:
    """Have all that this process starts from now on killed once it has ended, be it by SIGKILL."""
    # The writing end is this process's alone and never closed, so that the end of the stream is its own end. Unlike
    # that of a process, its number is nothing that another could come to have.
    end_of_this, _kept_open = os.pipe()
    token = secrets.token_hex(16)
    subprocess.Popen(
        [sys.executable, "-P", os.path.abspath(__file__), token],
        cwd="/",
        stdin=end_of_this,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # neither a closed terminal nor what is meant for the process group ends it
        # Or the end of a Snakemake around this one would end it.
        env={name: value for name, value in os.environ.items() if name != SNAKEMAKE_VARIABLE},
    )
    os.close(end_of_this)
    os.environ[SNAKEMAKE_VARIABLE] = token


def main(token: str) -> None:
    """Wait for the end of what holds the other end of standard input, then kill all that has the token."""
    sys.stdin.read()
    give_up, scans_left = time.monotonic() + GIVE_UP_S, SCANS
    while scans_left and time.monotonic() < give_up:
        scans_left = SCANS if _kill_all_with(token) else scans_left - 1
        time.sleep(BETWEEN_SCANS_S)


def _kill_all_with(token: str) -> bool:
    """Kill the processes that have the token; tell whether there was any."""
    import psutil  # here, for the callers of the worker import this module

    orphans = [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get(SNAKEMAKE_VARIABLE) == token
    ]
    for process in orphans:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return bool(orphans)


if __name__ == "__main__":
    main(sys.argv[1])
