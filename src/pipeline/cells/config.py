"""The plan: what the configuration and a scale ask to be measured, checked against their schemas."""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from referencing import Registry, Resource

from pipeline.cells import fields, record, sweep
from pipeline.cells.own_sizes import AXIS, read_sizes, unmodelled, with_sizes
from pipeline.cells.stage import Stage, Stages, taken_names
from pipeline.cells.yaml_files import read_yaml
from pipeline.errors import UserError
from pipeline.subjects import naming
from pipeline.subjects.naming import Subject
from pipeline.subjects.naming import read as read_subjects


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
    """Check a configuration and return its plan; the scale `auto` is `paper` on GPUs, else `laptop`.

    Without a GPU a scale NAME is the file NAME-cpu, where there is one.

    The configuration's subjects replace the scale's. With `only`, the other stages have no cells.

    Raises UserError, one line that names the file or `overrides`, the key, its value and what is allowed.
    """
    config = {**config, "measure": _truth(config.get("measure"))}
    validate(config, schemas / "config.schema.yaml", "config")
    name = config["scale"]
    if name == "auto":
        name = "paper" if has_gpu else "laptop"
    known = sorted(path.stem for path in scales.glob("*.yaml"))
    if name not in known:
        raise UserError(f"config: scale must be one of auto, {', '.join(known)}, got {name!r}")
    if f"{name}-cpu" in known and not has_gpu:
        name += "-cpu"
    path = scales / f"{name}.yaml"
    whole, only = _read_scale(path, schemas / "scale.schema.yaml"), _only(config.get("only"), stages)
    sizes = read_sizes(whole.get("sizes", {}), f"{path}: sizes") | read_sizes(config.get("sizes", {}), "sizes")
    asked, overrides = (_with_sizes(words, sizes) for words in (whole["stages"], config["overrides"]))
    # Each by itself first, so that a complaint names the one that is to be corrected.
    _check_stages(asked, stages, str(path))
    _check_stages(overrides, stages, "overrides")
    merged = {stage: _overridden(asked.get(stage, {}), overrides.get(stage, {})) for stage in stages}
    plans = {stage: _stage_plan(stages[stage], words, str(path)) for stage, words in merged.items() if stage in only}
    for stage, plan in plans.items():
        _check_limits(plan, f"{path} with overrides" if stage in overrides else str(path))
    subjects = _subjects(config, whole, str(path), stages)
    plans = {
        stage: dataclasses.replace(plan, subjects=stages[stage].subjects_among(subjects))
        for stage, plan in plans.items()
    }
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


def idle_overrides(overrides: Mapping[str, Any], plan: Plan) -> list[str]:
    """Return the stages whose overrides do nothing: settings alone, of a stage of which the scale has no cell."""
    planned = {stage: asked for stage, asked in overrides.items() if stage in plan.stages}
    return [stage for stage, asked in planned.items() if "grids" not in asked and not plan.stages[stage].cells]


def idle_subjects(plan: Plan) -> list[str]:
    """Return the implementations of the user's own that no cell of this run measures, as kind.name."""
    measured = {subject for stage in plan.stages.values() if stage.cells for subject in stage.subjects}
    return [f"{subject.kind}.{subject.name}" for subject in plan.subjects if subject not in measured]


def unmodelled_sizes(plan: Plan) -> list[str]:
    """Return a line for each of the user's own sizes that cells have, of whose model a part is not modelled."""
    cells = (cell for stage in plan.stages.values() for cell in stage.cells)
    return unmodelled(dict.fromkeys(getattr(cell, AXIS) for cell in cells if hasattr(cell, AXIS)))


def remarks(config: Mapping[str, Any], plan: Plan) -> list[str]:
    """Return a line for each thing that was asked for and does nothing, or less than one would think."""
    if not plan.measure:
        return []
    idle = [
        f"overrides: {stage} is not measured, for scale '{plan.scale}' has no cell of it: give it `grids`"
        for stage in idle_overrides(config["overrides"], plan)
    ]
    told = [f"subjects: {line}" for line in naming.told(config.get("subjects"), plan.subjects)]
    without = "is not measured, for this run has no cell of a stage that takes its kind"
    return [*idle, *told, *(f"subjects: {name} {without}" for name in idle_subjects(plan)), *unmodelled_sizes(plan)]


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
    """Read what a scale file asks of each stage; raises UserError where it is no YAML or does not fit its schema."""
    return _read_scale(path, schema)["stages"]


def _read_scale(path: Path, schema: Path) -> dict[str, Any]:
    scale = read_yaml(path)
    validate(scale, schema, str(path))
    return scale


def validate(instance: Any, schema: Path, where: str) -> None:
    """Check a value against a JSON schema; raises UserError with the most telling complaint."""

    # A schema may refer to another in its folder.
    def retrieve(name: str) -> Resource[Any]:
        return Resource.from_contents(read_yaml(schema.parent / name))

    # mypy does not see that attrs strips the underscore of the field _retrieve.
    registry: Registry[Any] = Registry(retrieve=retrieve)  # type: ignore[call-arg]
    validator = Draft202012Validator(read_yaml(schema), registry=registry)
    error = best_match(validator.iter_errors(instance))
    if error is not None:
        raise UserError(f"{where}: {_schema_complaint(error)}")


def _truth(value: Any) -> Any:
    """Read `false` and `true` as YAML does: Snakemake's --config takes them for text unless they are capitalised."""
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def _with_sizes(asked: Mapping[str, Any], sizes: Mapping[str, str]) -> dict[str, Any]:
    """Return what is asked of each stage with the names that say the numbers of the user's own sizes."""
    return {
        stage: {**words, "grids": with_sizes(words["grids"], sizes)} if "grids" in words else words
        for stage, words in asked.items()
    }


def _only(asked: Any, stages: Stages) -> set[str]:
    """Return the stages of a run: those asked for, or all."""
    names = [asked] if isinstance(asked, str) else asked
    for name in names or ():
        if name not in stages:
            raise UserError(f"config: only has '{name}', known stages are {', '.join(stages)}")
    return set(names or stages)


def _subjects(config: Mapping[str, Any], scale: Mapping[str, Any], path: str, stages: Stages) -> tuple[Subject, ...]:
    if config.get("subjects"):
        return read_subjects(config["subjects"], "subjects", taken_names(stages))
    return read_subjects(scale.get("subjects", {}), f"{path}: subjects", taken_names(stages))


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
    where = f"{source}: {stage.name}"
    for values in (asked.get("settings", {}), *asked.get("grids", [])):
        _check_finite(values, where)
    settings = fields.build(stage.settings_type, asked.get("settings", {}), f"{where} settings")
    grids = asked.get("grids", [])
    return StagePlan(stage.name, tuple(sweep.expand(stage.cell_type, grids, f"{where} grid")), settings, grids=grids)


def _check_limits(plan: StagePlan, source: str) -> None:
    """Raise UserError where a setting NAME or min_NAME exceeds max_NAME: every cell would fail, one after the other."""
    values = dataclasses.asdict(plan.settings)
    for limit in values:
        kind, _, what = limit.partition("_")
        for name in (what, f"min_{what}") if kind == "max" else ():
            if name in values and values[name] > values[limit]:
                most = f"at most {limit} ({values[limit]})"
                raise UserError(f"{source}: {plan.stage} settings: {name} must be {most}, got {values[name]}")


def _check_finite(values: Mapping[str, Any], where: str) -> None:
    """Raise UserError for a number that no float can hold: YAML has them, words of a command do not."""
    for key, asked in values.items():
        for value in asked if isinstance(asked, list) else [asked]:
            if isinstance(value, int | float) and abs(value) > sys.float_info.max:
                raise UserError(f"{where}: {key} must be a finite number, got {str(value)[:20]}")


def _schema_complaint(error: ValidationError) -> str:
    key = ".".join(map(str, error.absolute_path))
    # The stubs allow for an error without either, which no validator raises.
    schema: Any = error.schema
    instance: Any = error.instance
    if error.validator == "additionalProperties":
        allowed = ", ".join(schema.get("properties", {}))
        unknown = ", ".join(f"'{name}'" for name in set(instance) - set(schema.get("properties", {})))
        return f"unknown key {unknown}{f' under {key}' if key else ''}: must be one of {allowed}"
    if error.validator == "type":
        return f"{key or 'the whole'} must be {error.validator_value}, got {instance!r}"
    if error.validator in ("oneOf", "minItems"):
        return f"{key} must be {schema['description']}, got {instance!r}"
    return f"{key}: {error.message}" if key else error.message
