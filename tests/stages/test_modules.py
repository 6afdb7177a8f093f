"""Which modules count in a cell's freshness: what the records of one small cell of each stage hold."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.cells import fields, sources
from pipeline.cells.config import load_plan
from pipeline.cells.freshness import CHANGED_MEANWHILE, OUTSIDE
from pipeline.instruments.machine.identity import gpu_count
from pipeline.registry import NAMES, stages

ROOT = Path(__file__).parents[2]
# A name stands for the module and all below it.
RUNNING = {
    *("cells.capacity", "cells.devices", "cells.locks", "cells.quiet_host", "cells.run"),
    *("cells.scheduler", "cells.worker.child"),
    *("compat", "errors", "instruments.machine", "instruments.memory.out_of_memory"),
    *("instruments.sampling.stopwatch",),
}
SAMPLING = {"instruments.sampling.step_timing", "instruments.sampling.summary"}
BUSY = {f"instruments.profilers.{name}" for name in ("gpu_busy", "kernel_categories", "trace")}
MODEL = {"attention.eager", "attention.functions", "model", "ranges", "tf32"}
RANKS = {"parallel.processes"}
TRAINING_RANKS = {
    *(RANKS | MODEL | SAMPLING),
    *("cells.on_ranks", "instruments.memory.freed_memory", *BUSY, "instruments.profilers.collective_traffic"),
    *(
        "instruments.sampling.rank_timing",
        "instruments.sampling.stability",
        "instruments.sampling.weight_differences",
        "instruments.sampling.variants",
    ),
    *("parallel.overlap", "parallel.reductions", "parallel.replicas"),
}
FSDP = ("fsdp", "fsdp_casts", "fsdp_gathering", "fsdp_reduction", "fsdp_state", "fsdp_units", "lanes")
ATTENTION_CALLS = {
    *(SAMPLING | {"attention.eager", "ranges"}),
    *("instruments.sampling.interleaving", "instruments.sampling.kernel_timing", "instruments.sampling.stability"),
}
STEPS = MODEL | SAMPLING | BUSY | {"instruments.sampling.cuda_graph", "instruments.sampling.stability"}
OF_STAGE = {
    "timing": STEPS,
    "levers": STEPS,
    "profile": MODEL | SAMPLING | {"instruments.profilers", "instruments.sampling.stability"},
    "precision": set(),
    "memory": MODEL
    | SAMPLING
    | {f"instruments.memory.{name}" for name in ("recording", "replay", "saved_tensors", "snapshot")}
    | {"instruments.sampling.stability"},
    "attention": ATTENTION_CALLS | {"attention.functions", "instruments.memory.saved_tensors"},
    "flash": ATTENTION_CALLS | {"attention", "tf32"},
    "allreduce": RANKS | SAMPLING | {"parallel.nccl", "instruments.sampling.bursts", "instruments.sampling.stability"},
    "ddp": TRAINING_RANKS | {"parallel.ddp", "instruments.memory.rank_memory", "instruments.profilers.lanes"},
    "sharding": TRAINING_RANKS
    | {
        f"parallel.{name}"
        for name in ("broadcasts", "consolidation", "ddp", "groups", "partition", "sharded_optimizer")
    }
    | {"instruments.memory.training_kinds"},
    "fsdp": TRAINING_RANKS
    | {
        f"parallel.{name}"
        for name in ("broadcasts", "consolidation", "ddp", "groups", "partition", "sharded_optimizer", *FSDP)
    }
    | {f"instruments.memory.{name}" for name in ("rank_memory", "training_kinds")}
    | {"instruments.profilers.lanes"},
    "step8b": TRAINING_RANKS
    - {"parallel.overlap", "instruments.profilers.collective_traffic"}
    - {"instruments.sampling.weight_differences"}
    | {"attention.sdpa", *(f"parallel.{name}" for name in FSDP)},
    "accounting": set(),
    "ceilings": SAMPLING
    | {"tf32"}
    | {f"instruments.sampling.{name}" for name in ("bursts", "interleaving", "kernel_timing", "stability")},
}
MODEL_FORMULAS = {"attention", "parameters", "sizes", "units"}
FORMULAS = {
    "levers": MODEL_FORMULAS | {"checkpointing", "flops"},
    "timing": MODEL_FORMULAS | {"checkpointing", "flops"},
    "profile": {"checkpointing", "sizes"},
    "precision": set(),
    "memory": MODEL_FORMULAS | {"activations", "checkpointing", "peak_memory", "temporaries", "training_state"},
    "attention": {"attention", "units"},
    "flash": {"attention", "units"},
    "allreduce": {"collectives"},
    "ddp": {"checkpointing", "sizes", "training_state", "units"},
    "step8b": MODEL_FORMULAS | {"checkpointing", "flops", "fsdp"},
    "sharding": {"checkpointing", "collectives", "sizes", "training_state", "units"},
    "fsdp": MODEL_FORMULAS
    | {"activations", "checkpointing", "collectives", "fsdp", "fsdp_training", "peak_memory", "temporaries"}
    | {"training_state"},
    "ceilings": set(),
    "accounting": MODEL_FORMULAS
    | {"activations", "buckets", "checkpointing", "collectives", "feed_forward_parallel", "mesh", "training_state"},
}


@pytest.fixture(scope="module")
def plan():
    config = {"scale": "smoke", "measure": True, "overrides": {}}
    return load_plan(config, ROOT / "config/scales", ROOT / "workflow/schemas", stages(), gpu_count() > 0)


def below(name, prefixes):
    return any(f"{name}.".startswith(f"{prefix}.") for prefix in prefixes)


def reached(stage):
    """Return the modules that a cell of the stage could import."""
    package = f"pipeline.stages.{stage}"
    return sources.reached_modules("pipeline.cells.run", f"{package}.measure", f"{package}.cell") - OUTSIDE


@pytest.mark.parametrize("stage", NAMES)
def test_a_record_holds_the_modules_that_its_cell_ran_and_no_others(plan, stage, tmp_path):
    asked = plan.stages[stage]
    # Threads would wait for those of the tests beside this one.
    one_thread = replace(asked.settings, threads=1) if hasattr(asked.settings, "threads") else asked.settings
    settings = [f"--set={word}" for word in fields.words(one_thread)]
    words = [stage, *fields.words(asked.cells[0]), *settings, "--out", str(tmp_path / "cell.json")]
    done = subprocess.run([sys.executable, "-m", "pipeline", "measure", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    code = json.loads((tmp_path / "cell.json").read_text())["code"]["modules"]
    assert CHANGED_MEANWHILE not in code.values()
    assert code.keys() <= reached(stage)

    modules = {name.removeprefix("pipeline.") for name in code}
    expected = RUNNING | OF_STAGE[stage] | {f"stages.{stage}"} | {f"formulas.{name}" for name in FORMULAS[stage]}
    packages = {name.rpartition(".")[0] for name in modules}
    assert {name for name in modules - packages if not below(name, expected)} == set()
    assert {part for part in expected if not any(below(name, [part]) for name in modules)} == set()


@pytest.mark.parametrize("stage", NAMES)
def test_no_cell_can_reach_a_report_or_another_stage(stage):
    own = f"pipeline.stages.{stage}"
    assert {name for name in reached(stage) if below(name, ["pipeline.stages"]) and not below(name, [own])} == set()
    assert {name for name in reached(stage) if below(name, [f"{own}.report", "pipeline.report"])} == set()
