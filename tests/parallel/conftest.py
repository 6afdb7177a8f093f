"""Ranks for tests, quickly: forked from a process that was itself forked before any test ran.

A process with one thread can be forked into ranks within milliseconds. The test process may have more of them by the
time that these tests run, for tests before them may have used PyTorch's thread pool.
"""

import multiprocessing
import pickle

import pytest
import torch._dynamo  # by an optimizer's first step: here, so that not every rank imports it  # noqa: F401

from pipeline.parallel.processes import starting

TIMEOUT_S = 40


class RankHost:
    """A forked process that calls `run_ranks` for this one."""

    def __init__(self):
        self._requests, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=self._serve, args=(theirs,))
        self._process.start()
        theirs.close()

    def run(self, function, world_size, *args, timeout_s=TIMEOUT_S):
        """Run `function(context, *args)` as ranks on gloo; return their results, or fail with the first's traceback."""
        self._requests.send((function, world_size, args, timeout_s))
        failure, results = pickle.loads(self._requests.recv_bytes())
        if failure:
            pytest.fail(failure, pytrace=False)
        return results

    def end(self):
        self._requests.close()
        self._process.join()

    def _serve(self, requests):
        self._requests.close()
        # Tensors here are small, and beside other tests a rank's threads wait for each other.
        starting.threads_per_rank = lambda _num_ranks: 1
        while True:
            try:
                function, world_size, args, timeout_s = requests.recv()
            except EOFError:
                return
            try:
                results = starting.run_ranks(function, world_size, backend="gloo", timeout_s=timeout_s, args=args)
                answer = (None, results)
            except Exception as error:
                answer = (str(error), None)
            # By value: to share a tensor's memory, send() would start a thread, and the ranks after it not be forked.
            requests.send_bytes(pickle.dumps(answer))


HOST = pytest.StashKey[RankHost]()


def pytest_collection_finish(session):
    """Fork the host: every test module is imported, no test has run."""
    session.config.stash[HOST] = RankHost()


def pytest_unconfigure(config):
    if HOST in config.stash:
        config.stash[HOST].end()


@pytest.fixture(scope="session")
def on_ranks(pytestconfig):
    return pytestconfig.stash[HOST].run
