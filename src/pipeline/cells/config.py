"""Build a run's plan from the configuration and a scale, both checked against their schemas."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.cells import fields, record
from pipeline.cells.own_sizes import AXIS, read_sizes, unmodelled, with_sizes
from pipeline.cells.stage import Stage, Stages, reserved_names
from pipeline.cells.yaml_files import read_yaml, schema_complaint
from pipeline.errors import UserError
from pipeline.subjects import naming
from pipeline.subjects.naming import Subject


@dataclass(frozen=True)
class StagePlan:
    """A stage's cells in measuring order, their settings and subjects, and the grids they were expanded from."""

    stage: str
    cells: tuple[Any, ...]
    settings: Any
    subjects: tuple[Subject, ...] = ()
    grids: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Plan:
    """What one run of the workflow will do."""

    scale: str
    measure: bool
    stages: dict[str, StagePlan]
    subjects: tuple[Subject, ...] = ()


def load_plan(config: Mapping[str, Any], scales: Path, schemas: Path, stages: Stages, has_gpu: bool) -> Plan:
    """Check a configuration and return its plan; its subjects replace the scale's.

    The scale `auto` means `paper` with a GPU, else `laptop`. Without a GPU, NAME means the file NAME-cpu if it exists.
    Raises UserError, one line that names the file or `overrides`, the key, its value and what is allowed.
    """
    # Snakemake's --config passes `false` and `true` as text unless they are capitalised.
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
    declared = read_scale(path, schemas / "scale.schema.yaml")
    sizes = read_sizes(declared.get("sizes", {}), f"{path}: sizes") | read_sizes(config.get("sizes", {}), "sizes")
    scale_stages, overrides = (with_sizes(words, sizes) for words in (declared["stages"], config["overrides"]))
    # Check each separately first, so that an error names the one to fix.
    _check_stages(scale_stages, stages, str(path))
    _check_stages(overrides, stages, "overrides")
    own_subjects = config.get("subjects")
    subjects = naming.read(
        own_subjects or declared.get("subjects", {}),
        "subjects" if own_subjects else f"{path}: subjects",
        reserved_names(stages),
    )
    plans = {}
    for stage in _requested_stages(config.get("only"), stages):
        plan = _stage_plan(stages[stage], _overridden(scale_stages.get(stage, {}), overrides.get(stage, {})), str(path))
        _check_limits(plan, f"{path} with overrides" if stage in overrides else str(path))
        plans[stage] = replace(plan, subjects=stages[stage].subjects_among(subjects))
    return Plan(name, config["measure"], plans, subjects)


def config_words(config: Mapping[str, Any], plan: Plan) -> list[str]:
    """Return the words for `--config` that request the same cells: the scale and the other keys that are set."""
    keys = [key for key in ("only", "sizes", "subjects", "overrides") if config.get(key)]
    more = {key: json.dumps(_with_numbers(config[key]), sort_keys=True) for key in keys}
    return [f"{key}={value}" for key, value in {"scale": plan.scale, **more}.items()]


def _with_numbers(value: Any) -> Any:
    """Parse the numbers nested in a value: Snakemake passes those inside a `--config` value as text."""
    if isinstance(value, Mapping):
        return {str(key): _with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item) for item in value]
    for kind in (int, float) if isinstance(value, str) else ():
        with contextlib.suppress(ValueError):
            return kind(value)
    return value


def remarks(config: Mapping[str, Any], plan: Plan) -> list[str]:
    """Return a line for each request that has no effect, or less effect than one would expect."""
    if not plan.measure:
        return []
    measured = {name: stage_plan for name, stage_plan in plan.stages.items() if stage_plan.cells}
    idle = [
        f"overrides: {name} is not measured: scale '{plan.scale}' has no cells for it; add `grids`"
        for name, override in config["overrides"].items()
        if "grids" not in override and name in plan.stages and name not in measured
    ]
    partial = ["only: pages show only these stages; run without it to show all"] if config.get("only") else []
    subject_notes = [f"subjects: {line}" for line in naming.told(config.get("subjects"), plan.subjects)]
    measured_subjects = {subject for stage_plan in measured.values() for subject in stage_plan.subjects}
    why = "is not measured: this run has no cell that measures its kind"
    left_out = [f"subjects: {each.kind}.{each.name} {why}" for each in plan.subjects if each not in measured_subjects]
    cells = (cell for stage_plan in measured.values() for cell in stage_plan.cells)
    return [
        *idle,
        *partial,
        *subject_notes,
        *left_out,
        *unmodelled(dict.fromkeys(getattr(cell, AXIS, "") for cell in cells)),
    ]


def check_something_to_write(plan: Plan, results: Path) -> None:
    """Raise UserError if a run has nothing to write up: it requests no cell, or finds no record to render."""
    if plan.measure and not any(stage.cells for stage in plan.stages.values()):
        raise UserError(
            f"scale '{plan.scale}' with its overrides has no cells: give a stage `grids` with at least one entry "
            "({} is the default cell)"
        )
    if not plan.measure and not any(True for _ in record.record_paths(results)):
        raise UserError(
            f"measure is false, and {results.absolute()}/ holds no records to render: measure with "
            "`--config measure=true`, or use `--directory` to name the folder whose results/ has them"
        )


def read_config(path: Path) -> Mapping[str, Any]:
    """Read the configuration file; raises UserError if it is not YAML or not a mapping."""
    config = read_yaml(path)
    if not isinstance(config, Mapping):
        keys = "scale, measure, overrides, subjects, sizes, only"
        raise UserError(f"{path}: must have the keys {keys}, got {config!r}")
    return config


def read_scale(path: Path, schema: Path) -> dict[str, Any]:
    """Read a scale file; raises UserError if it is not YAML or does not fit its schema."""
    scale = read_yaml(path)
    _check_schema(scale, schema, str(path))
    return scale


def _check_schema(instance: Any, schema: Path, where: str) -> None:
    if complaint := schema_complaint(instance, schema):
        raise UserError(f"{where}: {complaint}")


def _requested_stages(requested: Any, stages: Stages) -> list[str]:
    """Return the stages of a run: those requested, or all."""
    names = ([requested] if isinstance(requested, str) else requested) or list(stages)
    for name in names:
        if name not in stages:
            hint = "; quote the option: 'only=[timing,flash]'" if name.startswith("[") else ""
            raise UserError(f"config: only: unknown stage '{name}': must be one of {', '.join(stages)}{hint}")
    return [name for name in stages if name in names]


def _overridden(stage: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Lay an override over a stage: its grids replace the scale's, its settings are merged into them."""
    settings = {**stage.get("settings", {}), **override.get("settings", {})}
    return {"settings": settings, "grids": override.get("grids", stage.get("grids", []))}


def _check_stages(entries: Mapping[str, Any], stages: Stages, source: str) -> None:
    """Raise UserError, naming the source, for an unknown stage, axis or setting, or a value that is not allowed."""
    for stage, entry in entries.items():
        if stage not in stages:
            raise UserError(f"{source}: unknown stage '{stage}': must be one of {', '.join(stages)}")
        _stage_plan(stages[stage], entry, source)


def _stage_plan(stage: Stage, entry: Mapping[str, Any], source: str) -> StagePlan:
    where, grids = f"{source}: {stage.name}", entry.get("grids", [])
    settings = fields.build(stage.settings_type, entry.get("settings", {}), f"{where} settings")
    return StagePlan(stage.name, tuple(fields.expand(stage.cell_type, grids, f"{where} grid")), settings, grids=grids)


def _check_limits(plan: StagePlan, source: str) -> None:
    """Raise UserError if a setting NAME or min_NAME exceeds max_NAME, since every cell would then fail."""
    values = asdict(plan.settings)
    for limit in values:
        kind, _, what = limit.partition("_")
        for name in (what, f"min_{what}") if kind == "max" else ():
            if name in values and values[name] > values[limit]:
                most = f"at most {limit} ({values[limit]})"
                raise UserError(f"{source}: {plan.stage} settings: {name} must be {most}, got {values[name]}")
