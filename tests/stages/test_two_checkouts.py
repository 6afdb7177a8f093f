"""Measure two checkouts of a project, with the same package names, in one cell: each runs with its own code."""

import importlib
import shutil
from pathlib import Path

import pytest

from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.registry import stages
from pipeline.subjects import measuring
from pipeline.subjects.checking import Verdict
from pipeline.subjects.naming import Subject

CHECKOUT = Path(__file__).parents[1] / "subjects/outside/checkout"
TINY, FEW = {"size": "tiny", "context_length": 16}, {"vocab_size": 50, "warmup_steps": 2, "steps": 5, "rounds": 1}
CELLS = {"flash": {"dtype": "fp32", "head_dim": 16, "seq_len": 32}}
SETTINGS = {
    "flash": {"min_samples": 3, "max_samples": 3, "budget_s": 0.1},
    "timing": {"vocab_size": 50, "compiled": False, "budget_s": 0.1},
}
ADAPTERS = {"ddp": "get_ddp", "fsdp": "get_fsdp", "sharding": "get_sharded_optimizer", "timing": "get_model"}
ADAPTERS |= {"flash": "get_flashattention_autograd_function_pytorch"}
# What a checkout sets when it runs is undone and reported in its rows, which shows whose code ran.
OF_A, OF_B = "benchmark", "deterministic"


@pytest.fixture
def checkouts(tmp_path):
    for name, its in (("a", OF_A), ("b", OF_B)):
        shutil.copytree(CHECKOUT, tmp_path / name)
        (tmp_path / name / "pyproject.toml").touch()
        late = tmp_path / name / "course_systems/late.py"
        late.write_text(late.read_text().replace(f'"{OF_A}"', f'"{its}"'))
    return tmp_path


@pytest.mark.parametrize(("stage", "adapter"), ADAPTERS.items())
def test_each_of_two_checkouts_is_measured_with_its_own_code(checkouts, monkeypatch, stage, adapter):
    parts = {name: importlib.import_module(f"pipeline.stages.{stage}.{name}") for name in ("cell", "measure")}
    # The check runs in separate processes, with one checkout each.
    monkeypatch.setattr(measuring, "verdict", lambda *_args: Verdict("ok", way="folded"))
    kind = stages()[stage].subjects.kind
    subjects = [Subject(kind, name, f"{checkouts}/{name}/tests/adapters.py:{adapter}") for name in "ab"]
    settings = parts["cell"].Settings(**SETTINGS.get(stage, FEW))
    rows = parts["measure"].measure(parts["cell"].Cell(**CELLS.get(stage, TINY)), settings, Stopwatch(), subjects)
    stages()[stage].row_types.check(CELLS.get(stage, TINY), rows)
    for name, its, others in (("a", OF_A, OF_B), ("b", OF_B, OF_A)):
        own = [row for row in rows if row.get("impl") == name]
        assert {row["status"] for row in own} <= {"ok", "unstable"}
        assert all(f"it set cudnn.{its} from False to True" in row["reason"] for row in own)
        assert not any(others in row["reason"] for row in own)
    assert not any("cudnn" in (row.get("reason") or "") for row in rows if row.get("impl") not in ("a", "b"))
