"""Check which modules a cell's freshness depends on, from the record of one small cell of each stage."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.cells import fields
from pipeline.cells.config import load_plan
from pipeline.cells.freshness import CHANGED_MEANWHILE
from pipeline.instruments.machine.identity import gpu_count
from pipeline.registry import NAMES, stages

ROOT = Path(__file__).parents[2]
# Modules that run a cell, report on it or derive values from it: editing them must not make any cell stale.
NEVER = (
    *("cells", "compare", "errors", "cli", "formulas.flops", "formulas.peak_memory"),
    *("report", "registry", "ways.needs"),
)
NEVER_OF_STAGE = ("rows", "report", "peaks", "needs")
MODEL = {"attention.eager", "model.step", "model.transformer", "formulas.sizes"}
STEPS = MODEL | {"instruments.sampling.step_timing", "instruments.profilers.gpu_busy"}
RANKS = STEPS | {"parallel.processes.starting", "instruments.sampling.rank_timing"}
WAYS = RANKS | {"ways.turns", "ways.notes", "ways.way"}
CALLS = {"instruments.sampling.interleaving", "instruments.sampling.kernel_timing", "attention.eager"}
# The code that the stage measures, and the instruments it uses: editing them must make its cells stale.
ALWAYS = {
    "timing": STEPS,
    "levers": STEPS | {"parallel.processes.starting"},
    "profile": STEPS | {"instruments.profilers.torch_profiler"},
    "precision": set(),
    "memory": MODEL | {"instruments.memory.recording"},
    "attention": CALLS,
    "flash": CALLS,
    "ops": (CALLS - {"attention.eager"}) | {"model.operations", "model.operation_problems", "subjects.operation_check"},
    "collectives": {"parallel.processes.starting", "instruments.sampling.bursts"},
    "ddp": WAYS | {"parallel.ddp", "instruments.profilers.lanes"},
    "sharding": WAYS | {"parallel.sharded_optimizer", "instruments.memory.recording"},
    "fsdp": WAYS | {"parallel.fsdp_units", "instruments.memory.training_kinds"},
    "tensor_parallel": (RANKS - {"attention.eager"})
    | {"ways.ranks", "instruments.machine.ceilings", "instruments.profilers.collective_traffic"},
    "step8b": (RANKS - {"model.step"}) | {"model.fused.language_model", "parallel.fsdp_units", "ways.ranks"},
    "accounting": set(),
    "health": {"instruments.machine.gpu_health", "stages.health.load"},
    "ceilings": {"instruments.machine.ceilings", "instruments.sampling.interleaving", "tf32"},
}


@pytest.fixture(scope="module")
def plan():
    config = {"scale": "smoke", "measure": True, "overrides": {}}
    return load_plan(config, ROOT / "config/scales", ROOT / "workflow/schemas", stages(), gpu_count() > 0)


def below(name, prefixes):
    return any(f"{name}.".startswith(f"{prefix}.") for prefix in prefixes)


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("stage", NAMES)
def test_a_record_lists_the_measured_code_and_its_instruments_and_nothing_else(plan, stage, tmp_path):
    asked = plan.stages[stage]
    # Several threads would wait for those of other tests that run at the same time.
    one_thread = replace(asked.settings, threads=1) if hasattr(asked.settings, "threads") else asked.settings
    settings = [f"--set={word}" for word in fields.words(one_thread)]
    words = [stage, *fields.words(asked.cells[0]), *settings, "--out", str(tmp_path / "cell.json")]
    done = subprocess.run([sys.executable, "-m", "pipeline", "measure", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    code = json.loads((tmp_path / "cell.json").read_text())["code"]["modules"]
    assert CHANGED_MEANWHILE not in code.values()

    modules = {name.removeprefix("pipeline.") for name in code}
    own = {f"stages.{stage}.{part}" for part in ("cell", "measure")}
    assert (ALWAYS[stage] | own) - modules == set()
    never = (*NEVER, *(f"stages.{stage}.{part}" for part in NEVER_OF_STAGE))
    assert {name for name in modules if below(name, never)} == set()
    others = [f"stages.{name}" for name in NAMES if name != stage]
    assert {name for name in modules if below(name, others)} == set()
