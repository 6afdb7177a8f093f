"""Run one function in several processes on several nodes of a Slurm job, each a rank of one process group.

srun starts one process on each node (`one_node`), which starts its ranks as `starting` does on one machine. All meet in
a store that the caller holds, on a port that the system chose; Slurm tells the nodes its host. Call and answers go
through it too, so that no folder need be shared. They are signed: anyone may reach the port, and pickles run code.
"""

import contextlib
import os
import pickle
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import torch.distributed as dist

from pipeline.loaded_modules import add_loaded_elsewhere
from pipeline.parallel.processes import one_node
from pipeline.parallel.processes.one_node import CALL, KEY_VARIABLE, Call, answers_key, signed, verified
from pipeline.parallel.processes.rank import Failure, location
from pipeline.parallel.processes.starting import END_S, GRACE_S, Answers, Hang, check, results

POLL_S = 0.05
# How long other nodes may take to tell of a failure after the first: each waits for its own ranks too.
NODES_GRACE_S = 4 * GRACE_S
TOLD_BYTES = 4096
# Beside steps of the same job, such as one that this process runs in; ranks use all cores that the job has on a node.
SRUN = ("srun", "--ntasks-per-node=1", "--overlap", "--cpu-bind=none", "--kill-on-bad-exit=1")


def run_ranks_over_nodes(
    function: Callable[..., Any],
    world_size: int,
    nodes: int,
    *,
    backend: str,
    device_type: str = "cpu",
    timeout_s: float = 60.0,
    args: Sequence[Any] = (),
) -> list[Any]:
    """Run `function(context, *args)` as `starting.run_ranks` does, on the first `nodes` nodes of this Slurm job.

    Ranks are numbered node by node, as many on each; `world_size` is a multiple of `nodes`.
    Raises as `run_ranks` does; RankFailed also where a node's process died or never started, with what srun says of it.
    """
    check(function, world_size // nodes, backend, device_type)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    key = secrets.token_bytes(32)
    words = (location(function), pickle.dumps((function, tuple(args))))
    call = Call(world_size, world_size // nodes, backend, device_type, timeout_s, time.time() + timeout_s, *words)
    store.set(CALL, signed(call, key))
    with tempfile.TemporaryFile() as said, _started(nodes, store.port, key, said) as step:
        answers = _collected(store, key, nodes, step, call.until + END_S)
        missing = [rank for rank in range(world_size) if rank not in answers]
        answers |= dict.fromkeys(missing, Hang("a place unknown"))
        if missing and step.poll() is not None:
            answers[missing[0]] = _death(said)
    return results(answers, timeout_s)


@contextlib.contextmanager
def _started(nodes: int, port: int, key: bytes, said: IO[bytes]) -> Iterator[subprocess.Popen]:
    """Start a process on each node; end them all in the end."""
    step = subprocess.Popen(
        [*SRUN, f"--nodes={nodes}", f"--ntasks={nodes}", sys.executable, "-m", one_node.__name__, str(port)],
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        env={**os.environ, KEY_VARIABLE: key.hex()},
    )
    try:
        yield step
    finally:
        step.terminate()  # which srun passes on to every node
        try:
            step.wait(END_S)
        except subprocess.TimeoutExpired:
            step.kill()
            step.wait()


def _collected(store: dist.Store, key: bytes, nodes: int, step: subprocess.Popen, until: float) -> Answers:
    """Return what ranks have answered: all, or those until the time, the step's end or, a little later, a failure."""
    answers: Answers = {}
    waiting = set(range(nodes))
    while waiting and time.time() < until:
        ended = step.poll() is not None  # asked first: what it left is there then
        for node in [node for node in waiting if store.check([answers_key(node)])]:
            waiting.remove(node)
            of_node, modules = verified(store.get(answers_key(node)), key)
            answers |= of_node
            add_loaded_elsewhere(modules)
            if any(isinstance(answer, Failure) for answer in of_node.values()):
                until = min(until, time.time() + NODES_GRACE_S)
        if ended:
            break
        time.sleep(POLL_S)
    return answers


def _death(said: IO[bytes]) -> Failure:
    """Return how the step ended by what it printed: srun's first complaint, below it the end of all."""
    said.seek(max(0, said.seek(0, os.SEEK_END) - TOLD_BYTES))
    lines = said.read().decode(errors="replace").strip().splitlines()
    complaint = next((line for line in lines if line.startswith("srun: error")), "srun ended")
    return Failure(time.time(), f"sent no result: {complaint}", "\n".join(lines), None)
