"""One node's side of `run_ranks_over_nodes`: start the node's ranks and send their answers."""

import hmac
import os
import pickle
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from pipeline.loaded_modules import loaded_modules
from pipeline.parallel.processes.rank import Failure, Group, import_from
from pipeline.parallel.processes.starting import answers_of, threads_per_rank

KEY_VARIABLE = "PIPELINE_NODES_KEY"
CALL = "call"
DIGEST_BYTES = 32
REACH_S = 60.0


class Call(NamedTuple):
    """What all nodes run: the group, the deadline (Unix time), the function's module, the pickled function and args."""

    world_size: int
    ranks_per_node: int
    backend: str
    device_type: str
    timeout_s: float
    until: float
    module: tuple[str, str]
    function_and_args: bytes


def answers_key(node: int) -> str:
    """Return the store's key for the answers of a node's ranks."""
    return f"answers/{node}"


def signed(value: Any, key: bytes) -> str:
    """Return a value's signature and pickle as hex text, which a store accepts."""
    content = pickle.dumps(value)
    return (hmac.digest(key, content, "sha256") + content).hex()


def verified(message: bytes, key: bytes) -> Any:
    """Return a value that was signed with this key; raises ValueError if the signature is wrong."""
    both = bytes.fromhex(message.decode())
    signature, content = both[:DIGEST_BYTES], both[DIGEST_BYTES:]
    if not hmac.compare_digest(signature, hmac.digest(key, content, "sha256")):
        raise ValueError("a message between nodes has a wrong signature")
    return pickle.loads(content)


def main(port: int) -> None:
    """Run this node's ranks; the caller's host and this node's number and name come from Slurm."""
    host, name = os.environ["SLURM_LAUNCH_NODE_IPADDR"], os.environ["SLURMD_NODENAME"]
    key = bytes.fromhex(os.environ.pop(KEY_VARIABLE))
    try:
        store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=REACH_S))
    except dist.DistError:
        sys.exit(f"{name} did not reach {host}:{port}, where its ranks are to meet, within {REACH_S:g} s")
    call: Call = verified(store.get(CALL), key)
    node = int(os.environ["SLURM_NODEID"])
    answers = _answers(call, node * call.ranks_per_node, (host, port))
    for rank, answer in answers.items():
        if isinstance(answer, Failure):
            answers[rank] = answer._replace(summary=f"on {name} {answer.summary}")
    store.set(answers_key(node), signed((answers, loaded_modules()), key))


def _answers(call: Call, first: int, store_at: tuple[str, int]) -> Any:
    import_from(*call.module)
    function, args = pickle.loads(call.function_and_args)
    threads = threads_per_rank(call.ranks_per_node)
    deadline = time.monotonic() + call.until - time.time()
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        group = Group(
            *(call.world_size, call.backend, call.device_type, threads, call.timeout_s, Path(folder)),
            first_rank=first,
            store_at=store_at,
        )
        return answers_of(group, range(first, first + call.ranks_per_node), function, args, deadline)


if __name__ == "__main__":
    main(int(sys.argv[1]))
