"""Run a Slurm cluster of two nodes on this machine: munged, slurmctld and two slurmd with their own configuration.

Each node claims to have 16 CPUs, 128 GB and one GPU (a file in /dev): the profile in `workflow/profiles/slurm` requests
no more, and nothing binds or limits jobs. There is no accounting, so squeue tells how jobs ended. A node is a process
namespace: killing it ends all processes in it at once, as a power failure would.
"""

import contextlib
import os
import secrets
import shlex
import shutil
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from .processes import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
GPUS = {"n1": "/dev/null", "n2": "/dev/zero"}
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
# A passing test never waits this long, even on a loaded machine, because conditions are polled.
LIMIT_S = 600.0
# The variable that tells which cluster a process belongs to; everything that jobs start inherits it.
MARK = "TEST_CLUSTER"
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
ReturnToService=2
MpiDefault=none
MinJobAge=600
KillWait=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=16 RealMemory=131072 Gres=gpu:1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=16 RealMemory=131072 Gres=gpu:1
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class Cluster:
    folder: Path
    daemons: dict[str, psutil.Popen] = field(default_factory=dict)

    @property
    def environment(self):
        """The variables that make Slurm's commands use this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), MARK: str(self.folder)}

    def start(self, name, *command):
        """Start a daemon in its own namespaces; it and everything in them end with this process.

        The daemon and its jobs find the configuration in its default place, because the executor plugin removes
        SLURM_CONF from a job's environment.
        """
        here = shlex.quote(str(self.folder))
        shell = f'mount --bind {here} /etc/slurm && exec "$@"'
        with (self.folder / f"{name}.log").open("a") as log:
            self.daemons[name] = psutil.Popen(
                ["setpriv", "--pdeathsig=KILL", *NAMESPACES, "sh", "-c", shell, "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_node(self, name):
        self.start(name, "slurmd", "-D", "-N", name)

    def await_nodes(self):
        wait_until(lambda: self.nodes() == dict.fromkeys(GPUS, "idle"), LIMIT_S)

    @contextlib.contextmanager
    def without_node(self, name):
        """Kill all on a node and tell the controller, which would take minutes to notice; restart it at the end."""
        kill([self.daemons[name]])
        self.run("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=lost")
        try:
            yield
        finally:
            self.start_node(name)
            self.await_nodes()

    def run(self, *command, env=os.environ):
        environment = {**env, **self.environment}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def nodes(self):
        """Return the state of each node; None before the controller answers."""
        with contextlib.suppress(AssertionError):
            return dict(line.split() for line in self.run("sinfo", "-N", "-h", "-o", "%N %t").splitlines())

    def jobs(self):
        """Return facts about each job that squeue lists, including ended ones, newest last."""
        names = ("JobID", "State", "NodeList", "tres-per-job", "OverSubscribe", "Comment", "Name")
        form = ",".join(f"{name}:|" for name in names)
        lines = self.run("squeue", "--states=all", "--noheader", f"--Format={form}").splitlines()
        jobs = [dict(zip(names, line.split("|"), strict=False)) for line in lines]
        return sorted(jobs, key=lambda job: int(job["JobID"]))

    def processes(self):
        """Return the processes that jobs of this cluster started."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environment = process.environ()
                if environment.get(MARK) == str(self.folder) and "SLURM_JOB_ID" in environment:
                    found.append(process)
        return found


@contextlib.contextmanager
def started(folder):
    """Start a cluster with its files in a folder; at the end, kill it and all that runs on its nodes."""
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(CONFIG.format(host=host, folder=folder, ports=free_ports(3)))
    gres = [f"NodeName={node} Name=gpu File={file}" for node, file in GPUS.items()]
    (folder / "gres.conf").write_text("\n".join(gres) + "\n")
    cluster = Cluster(folder)
    try:
        start_daemons(cluster)
        yield cluster
    finally:
        kill(cluster.daemons.values())


def start_daemons(cluster):
    """Start munged and Slurm's daemons; return once both nodes are idle."""
    folder = cluster.folder
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    files = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("pid-file", "seed-file", "socket")]
    # --force, because other users may not enter the folders of tests.
    cluster.start("munged", "munged", "--force", "--foreground", f"--key-file={key}", *files)
    wait_until((folder / "munge.socket").exists, LIMIT_S)
    cluster.start("slurmctld", "slurmctld", "-D")
    for node in GPUS:
        cluster.start_node(node)
    cluster.await_nodes()


def kill(processes):
    """Kill processes, some of which may have ended already; return once all have ended."""
    processes = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes)


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def why_not():
    """Return why no cluster can be started here; None if one can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)}: apt-get install slurm-wlm munge"
    if os.geteuid() != 0:
        return "needs root"
    tried = subprocess.run([*NAMESPACES, "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"needs namespaces for its nodes: {tried.stderr.strip()}"
