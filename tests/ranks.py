"""Run tests on several ranks quickly: a folder's conftest imports this module's fixtures and hooks.

    @on_ranks(1, 2)
    def test_something(context, other_argument): ...

runs on one rank and on two, each rank with its own `RankContext`. Ranks are started once per world size and run one
test after the other; after a failure they are replaced. They descend from a process that was forked before any test ran
and has only one thread, so that ranks can be forked from it within milliseconds.
"""

import multiprocessing
import os
import pickle
import time
import traceback
from multiprocessing.connection import wait

import pytest
import torch._dynamo  # an optimizer's first step imports it: here, so that not every rank does  # noqa: F401

from pipeline.parallel.processes import starting

TIMEOUT_S = 40
GRACE_S = 1.0  # for other ranks to fail too
FOREVER_S = 3600


def on_ranks(*world_sizes):
    """Run a test that takes `context` once for each of these numbers of ranks."""
    return pytest.mark.parametrize("context", world_sizes, indirect=True, ids=lambda size: f"{size} ranks")


class World:
    """Ranks of one process group, which run one function after the other."""

    def __init__(self, size):
        pipes = [multiprocessing.Pipe() for _ in range(size)]
        self._ours, theirs = zip(*pipes, strict=True)
        how = {"backend": "gloo", "timeout_s": FOREVER_S, "args": (theirs,)}
        fork = multiprocessing.get_context("fork")
        self._process = fork.Process(target=starting.run_ranks, args=(_take_turns, size), kwargs=how)
        self._process.start()
        for pipe in theirs:
            pipe.close()

    def run(self, function, arguments, timeout_s):
        """Run a function on every rank; return the failures as text, "" if there are none, and the results."""
        for pipe in self._ours:
            pipe.send((function, arguments))
        answers, deadline = {}, time.monotonic() + timeout_s
        while waiting := [pipe for pipe in self._ours if pipe not in answers]:
            ready = wait(waiting, max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                try:
                    answers[pipe] = pickle.loads(pipe.recv_bytes())
                except (EOFError, OSError):
                    answers[pipe] = ("died", None)
                if answers[pipe][0]:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        found = [answers.get(pipe, ("sent no answer in time", None)) for pipe in self._ours]
        failures = [f"rank {rank}: {failure}" for rank, (failure, _) in enumerate(found) if failure]
        return "\n".join(failures), [result for _, result in found]

    def end(self):
        self._process.kill()  # its ranks die with it
        self._process.join()


def _take_turns(context, pipes):
    """Act as a rank: run the functions that arrive through its pipe."""
    pipe = pipes[context.rank]
    while True:
        function, arguments = pipe.recv()
        try:
            answer = "", function(context, **arguments)
        except BaseException:
            answer = traceback.format_exc(), None
        # By value: to share a tensor's memory, send() would start a thread.
        pipe.send_bytes(pickle.dumps(answer))


class Host:
    """A forked process with one thread that forks ranks for this process."""

    def __init__(self):
        self._requests, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(target=self._serve, args=(theirs,))
        self._process.start()
        theirs.close()

    def run(self, function, world_size, *, timeout_s=TIMEOUT_S, **arguments):
        """Run `function(context, **arguments)` on ranks; return their results, or fail with their tracebacks."""
        failure, results = self._ask(_run_in_world, (function, world_size, arguments, timeout_s))
        if failure:
            pytest.fail(failure, pytrace=False)
        return results

    def run_ranks(self, function, world_size, **how):
        """Do what `starting.run_ranks` does, but with forked ranks."""
        results, error = self._ask(_run_afresh, (function, world_size, how))
        if error is not None:
            kind, given = error
            raise kind(*given)
        return results

    def end(self):
        self._requests.close()
        self._process.join()

    def _ask(self, *request):
        self._requests.send(request)
        return pickle.loads(self._requests.recv_bytes())

    def _serve(self, requests):
        self._requests.close()
        # Failures are reported through pipes; what profilers and crashes print would clutter the terminal.
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        # Tensors here are small, and while other tests run, a rank's threads would wait for each other.
        starting.threads_per_rank = lambda _num_ranks: 1
        worlds = {}
        try:
            while True:
                do, arguments = requests.recv()
                requests.send_bytes(pickle.dumps(do(worlds, *arguments)))
        except EOFError:
            for world in worlds.values():
                world.end()


def _run_in_world(worlds, function, world_size, arguments, timeout_s):
    if world_size not in worlds:
        worlds[world_size] = World(world_size)
    failure, results = worlds[world_size].run(function, arguments, timeout_s)
    if failure:
        worlds.pop(world_size).end()
    return failure, results


def _run_afresh(_worlds, function, world_size, how):
    try:
        return starting.run_ranks(function, world_size, **how), None
    except starting.RankFailed as error:
        return None, (starting.RankFailed, (error.rank, str(error)))
    except Exception as error:
        return None, (type(error), error.args)


HOST = pytest.StashKey[Host]()


def pytest_collection_finish(session):
    """Fork the host now: every test module is imported and no test has run."""
    if HOST not in session.config.stash:
        session.config.stash[HOST] = Host()


def pytest_unconfigure(config):
    if HOST in config.stash:
        config.stash[HOST].end()
        del config.stash[HOST]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    if "context" not in arguments:
        return None
    world_size = arguments.pop("context")
    pyfuncitem.config.stash[HOST].run(pyfuncitem.function, world_size, **arguments)
    return True


@pytest.fixture
def context(request):
    """The number of ranks, from `on_ranks`; the test itself gets a `RankContext`."""
    return request.param


@pytest.fixture(scope="session")
def host(pytestconfig):
    return pytestconfig.stash[HOST]
