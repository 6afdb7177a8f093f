"""The plan: what the configuration and a scale ask to be measured, checked against their schemas."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.cells import fields, record
from pipeline.cells.own_sizes import AXIS, read_sizes, unmodelled, with_sizes
from pipeline.cells.stage import Stage, Stages, taken_names
from pipeline.cells.yaml_files import read_yaml, schema_complaint
from pipeline.errors import UserError
from pipeline.subjects import naming
from pipeline.subjects.naming import Subject


@dataclass(frozen=True)
class StagePlan:
    """A stage's cells in the order to measure them, the settings and subjects of each, and the grids that give them."""

    stage: str
    cells: tuple[Any, ...]
    settings: Any
    subjects: tuple[Subject, ...] = ()
    grids: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Plan:
    """What one run of the workflow is to do."""

    scale: str
    measure: bool
    stages: dict[str, StagePlan]
    subjects: tuple[Subject, ...] = ()


def load_plan(config: Mapping[str, Any], scales: Path, schemas: Path, stages: Stages, has_gpu: bool) -> Plan:
    """Check a configuration, whose subjects replace the scale's, and return its plan.

    The scale `auto` is `paper` on GPUs, else `laptop`; without a GPU NAME is the file NAME-cpu, if there is one.
    Raises UserError, one line that names the file or `overrides`, the key, its value and what is allowed.
    """
    # Snakemake's --config takes `false` and `true` for text unless they are capitalised.
    measure = {"true": True, "false": False}.get(str(config.get("measure")), config.get("measure"))
    config = {**config, "measure": measure}
    _check_schema(config, schemas / "config.schema.yaml", "config")
    name = config["scale"]
    if name == "auto":
        name = "paper" if has_gpu else "laptop"
    known = sorted(path.stem for path in scales.glob("*.yaml"))
    if name not in known:
        raise UserError(f"config: scale must be one of auto, {', '.join(known)}, got {name!r}")
    if f"{name}-cpu" in known and not has_gpu:
        name += "-cpu"
    path = scales / f"{name}.yaml"
    whole = read_scale(path, schemas / "scale.schema.yaml")
    sizes = read_sizes(whole.get("sizes", {}), f"{path}: sizes") | read_sizes(config.get("sizes", {}), "sizes")
    asked, overrides = (with_sizes(words, sizes) for words in (whole["stages"], config["overrides"]))
    # Each by itself first, so that a complaint names the one that is to be corrected.
    _check_stages(asked, stages, str(path))
    _check_stages(overrides, stages, "overrides")
    mine = config.get("subjects")
    subjects = naming.read(
        mine or whole.get("subjects", {}), "subjects" if mine else f"{path}: subjects", taken_names(stages)
    )
    plans = {}
    for stage in _only(config.get("only"), stages):
        plan = _stage_plan(stages[stage], _overridden(asked.get(stage, {}), overrides.get(stage, {})), str(path))
        _check_limits(plan, f"{path} with overrides" if stage in overrides else str(path))
        plans[stage] = replace(plan, subjects=stages[stage].subjects_among(subjects))
    return Plan(name, config["measure"], plans, subjects)


def config_words(config: Mapping[str, Any], plan: Plan) -> list[str]:
    """Return the words after `--config` that ask for the same cells: the scale, and whatever else is asked for."""
    keys = [key for key in ("only", "sizes", "subjects", "overrides") if config.get(key)]
    more = {key: json.dumps(_with_numbers(config[key]), sort_keys=True) for key in keys}
    return [f"{key}={value}" for key, value in {"scale": plan.scale, **more}.items()]


def _with_numbers(value: Any) -> Any:
    """Return a value whose numbers are numbers: inside of what its command line gives, Snakemake makes them text."""
    if isinstance(value, Mapping):
        return {str(key): _with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item) for item in value]
    for kind in (int, float) if isinstance(value, str) else ():
        with contextlib.suppress(ValueError):
            return kind(value)
    return value


def remarks(config: Mapping[str, Any], plan: Plan) -> list[str]:
    """Return a line for each thing that was asked for and does nothing, or less than one would think."""
    if not plan.measure:
        return []
    measured = {name: asked for name, asked in plan.stages.items() if asked.cells}
    idle = [
        f"overrides: {name} is not measured, for scale '{plan.scale}' has no cell of it: give it `grids`"
        for name, asked in config["overrides"].items()
        if "grids" not in asked and name in plan.stages and name not in measured
    ]
    alone = ["only: pages show these stages alone; a run without it shows all again"] if config.get("only") else []
    told = [f"subjects: {line}" for line in naming.told(config.get("subjects"), plan.subjects)]
    taken = {subject for asked in measured.values() for subject in asked.subjects}
    without = "is not measured, for this run has no cell of a stage that takes its kind"
    left_out = [f"subjects: {each.kind}.{each.name} {without}" for each in plan.subjects if each not in taken]
    cells = (cell for asked in measured.values() for cell in asked.cells)
    return [*idle, *alone, *told, *left_out, *unmodelled(dict.fromkeys(getattr(cell, AXIS, "") for cell in cells))]


def check_something_to_write(plan: Plan, results: Path) -> None:
    """Raise UserError where a run would write up nothing: no cell is asked for, or none is there to render."""
    if plan.measure and not any(stage.cells for stage in plan.stages.values()):
        raise UserError(
            f"scale '{plan.scale}' with its overrides asks for no cell: give a stage `grids` with at least one entry "
            "({} is the default cell)"
        )
    if not plan.measure and not any(True for _ in record.record_paths(results)):
        raise UserError(
            f"measure is false, and {results.absolute()}/ holds no records to render: measure with "
            "`--config measure=true`, or name the folder that has them in its results/ by `--directory`"
        )


def read_config(path: Path) -> Mapping[str, Any]:
    """Read the configuration file; raises UserError where it is no YAML or holds no keys."""
    config = read_yaml(path)
    if not isinstance(config, Mapping):
        keys = "scale, measure, overrides, subjects, sizes, only"
        raise UserError(f"{path}: must have the keys {keys}, got {config!r}")
    return config


def read_scale(path: Path, schema: Path) -> dict[str, Any]:
    """Read a scale file; raises UserError where it is no YAML or does not fit its schema."""
    scale = read_yaml(path)
    _check_schema(scale, schema, str(path))
    return scale


def _check_schema(instance: Any, schema: Path, where: str) -> None:
    if complaint := schema_complaint(instance, schema):
        raise UserError(f"{where}: {complaint}")


def _only(asked: Any, stages: Stages) -> list[str]:
    """Return the stages of a run: those asked for, or all."""
    names = ([asked] if isinstance(asked, str) else asked) or list(stages)
    for name in names:
        if name not in stages:
            raise UserError(f"config: only has '{name}', known stages are {', '.join(stages)}")
    return [name for name in stages if name in names]


def _overridden(stage: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Lay an override over a stage: its grids replace the scale's, its settings are merged into them."""
    settings = {**stage.get("settings", {}), **override.get("settings", {})}
    return {"settings": settings, "grids": override.get("grids", stage.get("grids", []))}


def _check_stages(asked: Mapping[str, Any], stages: Stages, source: str) -> None:
    """Raise UserError, naming the source, for a stage, an axis or a setting that is unknown or may not be so."""
    for stage, words in asked.items():
        if stage not in stages:
            raise UserError(f"{source}: unknown stage '{stage}': must be one of {', '.join(stages)}")
        _stage_plan(stages[stage], words, source)


def _stage_plan(stage: Stage, asked: Mapping[str, Any], source: str) -> StagePlan:
    where, grids = f"{source}: {stage.name}", asked.get("grids", [])
    settings = fields.build(stage.settings_type, asked.get("settings", {}), f"{where} settings")
    return StagePlan(stage.name, tuple(fields.expand(stage.cell_type, grids, f"{where} grid")), settings, grids=grids)


def _check_limits(plan: StagePlan, source: str) -> None:
    """Raise UserError where a setting NAME or min_NAME exceeds max_NAME: every cell would fail, one after the other."""
    values = asdict(plan.settings)
    for limit in values:
        kind, _, what = limit.partition("_")
        for name in (what, f"min_{what}") if kind == "max" else ():
            if name in values and values[name] > values[limit]:
                most = f"at most {limit} ({values[limit]})"
                raise UserError(f"{source}: {plan.stage} settings: {name} must be {most}, got {values[name]}")
