import pytest

from pipeline.cells import scheduler
from pipeline.cells.scheduler import SlurmJob, slurm_job


@pytest.fixture(autouse=True)
def outside_of_a_job(monkeypatch):
    for name in ("ID", "NODELIST", "NUM_NODES"):
        monkeypatch.delenv(f"SLURM_JOB_{name}", raising=False)


def test_slurm_job_reads_the_variables_and_is_none_outside_a_job(monkeypatch):
    assert slurm_job() is None
    for name, value in {"ID": "7", "NODELIST": "n[1-2]", "NUM_NODES": "2"}.items():
        monkeypatch.setenv(f"SLURM_JOB_{name}", value)
    assert slurm_job() == SlurmJob("7", "n[1-2]", 2)


@pytest.mark.parametrize("squeue", ["echo 'gpu-a[3,5] 2'", None, "exit 1", "echo", "exec /bin/sleep 60"])
def test_a_job_with_only_a_number_asks_squeue_or_else_assumes_one_node(monkeypatch, tmp_path, squeue):
    if squeue is not None:
        (tmp_path / "squeue").write_text(f"#!/bin/sh\n{squeue}\n")
        (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setattr(scheduler, "PATIENCE_S", 0.5)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    assert slurm_job() == (SlurmJob("8", "gpu-a[3,5]", 2) if "gpu" in str(squeue) else SlurmJob("8", "", 1))
