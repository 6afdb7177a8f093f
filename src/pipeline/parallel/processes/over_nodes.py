"""Run one function in processes on several nodes of a Slurm job, each a rank of one process group.

srun starts one process on each node (`one_node`), which starts its ranks as `starting` does on one machine. All meet at
a store that the caller hosts, on a port chosen by the system; Slurm tells the nodes its host. The call and the answers
go through it too, so no shared folder is needed. They are signed: anyone may reach the port, and unpickling runs code.
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
# How long other nodes may take to answer after the first failure: each waits for its own ranks too.
NODES_GRACE_S = 4 * GRACE_S
TOLD_BYTES = 4096
# Shares resources with the job's other steps, such as this process's own; ranks use all cores of the job on a node.
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

    Ranks are numbered node by node, the same number on each; `world_size` is a multiple of `nodes`.
    Raises as `run_ranks` does; RankFailed also if a node's process died or never started, with srun's message.
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
    """Start a process on each node; end all of them on exit."""
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
        step.terminate()  # srun passes this on to every node
        try:
            step.wait(END_S)
        except subprocess.TimeoutExpired:
            step.kill()
            step.wait()


def _collected(store: dist.Store, key: bytes, nodes: int, step: subprocess.Popen, until: float) -> Answers:
    """Return the ranks' answers: all, or those until the deadline, the step's end or shortly after a failure."""
    answers: Answers = {}
    waiting = set(range(nodes))
    while waiting and time.time() < until:
        ended = step.poll() is not None  # checked first, so that answers from before the end are still read
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
    """Describe how the step ended from its output: srun's first error, then the last lines of all output."""
    said.seek(max(0, said.seek(0, os.SEEK_END) - TOLD_BYTES))
    lines = said.read().decode(errors="replace").strip().splitlines()
    complaint = next((line for line in lines if line.startswith("srun: error")), "srun ended")
    return Failure(time.time(), f"sent no result: {complaint}", "\n".join(lines), None)
