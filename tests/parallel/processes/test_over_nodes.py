"""Ranks on the two nodes of a local Slurm; tests that need no Slurm run without one."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from pipeline.errors import Skipped
from pipeline.parallel.processes import one_node
from pipeline.parallel.processes.one_node import signed, verified
from pipeline.parallel.processes.over_nodes import run_ranks_over_nodes
from pipeline.parallel.processes.starting import RankFailed

from ...processes import wait_until
from ...slurm import LIMIT_S, started, why_not

on_slurm = [
    pytest.mark.slurm,
    pytest.mark.skipif(why_not() is not None, reason=f"a Slurm of two nodes {why_not()}"),
]
FOREVER_S = 3600


def place_and_sum(context):
    """Return the rank's node and the sum over all ranks of 10 to the power of each."""
    total = torch.tensor([10**context.rank])
    dist.all_reduce(total)
    return os.environ["SLURMD_NODENAME"], context.rank, context.world_size, total.item()


def killed_on_rank_1(context):
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def skipped_on_rank_1(context):
    if context.rank == 1:
        raise Skipped("no such library")
    time.sleep(FOREVER_S)


def asleep(context):
    time.sleep(FOREVER_S)


def node_killed_on_rank_1(context):
    if context.rank == 1:
        os.kill(int(os.environ["SLURM_TASK_PID"]), signal.SIGKILL)
    time.sleep(FOREVER_S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with started(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def on_nodes(cluster, monkeypatch):
    """Run a function on the two nodes, in a job that this process joins; none of its processes may be left."""
    cluster.run("salloc", "--nodes=2", "--ntasks=2", "--no-shell")
    for name, value in {**cluster.environment, "SLURM_JOB_ID": cluster.jobs()[-1]["JobID"]}.items():
        monkeypatch.setenv(name, value)

    def run(function, world_size=2, timeout_s=120.0):
        return run_ranks_over_nodes(function, world_size, 2, backend="gloo", timeout_s=timeout_s)

    yield run
    wait_until(lambda: not cluster.processes(), LIMIT_S)
    cluster.run("scancel", "--user=root")


class TestOnSlurm:
    pytestmark = on_slurm

    def test_ranks_are_numbered_node_by_node_and_sum_over_all(self, on_nodes):
        places = [("n1", 0), ("n1", 1), ("n2", 2), ("n2", 3)]
        assert on_nodes(place_and_sum, 4) == [(*place, 4, 1111) for place in places]

    def test_a_killed_rank_is_named_with_its_node_and_ends_the_others(self, on_nodes):
        with pytest.raises(RankFailed, match=r"^rank 1 of 2 on n2 died by SIGKILL"):
            on_nodes(killed_on_rank_1)

    def test_an_outcome_keeps_its_type_and_ends_the_others(self, on_nodes):
        with pytest.raises(Skipped, match=r"^no such library$"):
            on_nodes(skipped_on_rank_1)

    def test_a_hang_ends_at_the_timeout_and_reports_the_stack(self, on_nodes):
        with pytest.raises(RankFailed, match=r"^rank 0, 1 of 2 sent no result within 10 s\nrank 0 was at\n"):
            on_nodes(asleep, timeout_s=10)

    def test_the_death_of_a_nodes_process_is_reported_with_sruns_message(self, on_nodes):
        with pytest.raises(RankFailed, match=r"^rank 0 of 2 sent no result: srun: error: n2: task 1: Killed"):
            on_nodes(node_killed_on_rank_1)


def test_a_node_that_cannot_reach_the_others_names_the_address(monkeypatch):
    variables = {"SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURMD_NODENAME": "n2", one_node.KEY_VARIABLE: "00"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(one_node, "REACH_S", 0.5)
    with pytest.raises(
        SystemExit, match=r"^n2 did not reach 127\.0\.0\.1:1, where its ranks are to meet, within 0\.5 s$"
    ):
        one_node.main(1)


def test_a_message_signed_with_another_key_is_not_unpickled():
    assert verified(signed({"rank": 1}, b"key").encode(), b"key") == {"rank": 1}
    with pytest.raises(ValueError, match="wrong signature"):
        verified(signed({"rank": 1}, b"another key").encode(), b"key")
