"""The plan: what the configuration and a scale ask to be measured, checked against their schemas."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from pipeline.cells import fields, sweep
from pipeline.errors import UserError


@dataclass(frozen=True)
class StagePlan:
    """A stage's cells in the order to measure them, and the settings that travel with each."""

    stage: str
    cells: tuple[Any, ...]
    settings: Any


@dataclass(frozen=True)
class Plan:
    """What one run of the workflow is to do."""

    scale: str
    measure: bool
    stages: dict[str, StagePlan]


def load_plan(config: Mapping[str, Any], scales: Path, schemas: Path, has_gpu: bool) -> Plan:
    """Check a configuration and return its plan; the scale `auto` is `paper` on GPUs, else `laptop`.

    Raises UserError, one line that names the key, its value and what is allowed.
    """
    config = {**config, "measure": _truth(config.get("measure"))}
    validate(config, schemas / "config.schema.yaml", "config")
    name = config["scale"]
    if name == "auto":
        name = "paper" if has_gpu else "laptop"
    known = sorted(path.stem for path in scales.glob("*.yaml"))
    if name not in known:
        raise UserError(f"config: scale is {name!r}, allowed are auto, {', '.join(known)}")
    stages = read_scale(scales / f"{name}.yaml", schemas / "scale.schema.yaml")
    for stage, override in config["overrides"].items():
        stages[stage] = _overridden(stages.get(stage, {}), override)
    unknown = set(stages) - set(sweep.stage_names())
    if unknown:
        raise UserError(f"unknown stage '{min(unknown)}'; known are {', '.join(sweep.stage_names())}")
    plans = {stage: _stage_plan(stage, stages.get(stage, {})) for stage in sweep.stage_names()}
    return Plan(name, config["measure"], plans)


def read_scale(path: Path, schema: Path) -> dict[str, Any]:
    """Read a scale file; raises UserError where it is no YAML or does not fit its schema."""
    scale = read_yaml(path)
    validate(scale, schema, str(path))
    return scale["stages"]


def read_yaml(path: Path) -> Any:
    """Read a YAML file; raises UserError with the place of a typo."""
    try:
        return yaml.safe_load(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: {_yaml_complaint(error)}") from None


def validate(instance: Any, schema: Path, where: str) -> None:
    """Check a value against a JSON schema; raises UserError with the most telling complaint."""
    validator = Draft202012Validator(yaml.safe_load(schema.read_text()))
    error = best_match(validator.iter_errors(instance))
    if error is not None:
        raise UserError(f"{where}: {_schema_complaint(error)}")


def _truth(value: Any) -> Any:
    """Read `false` and `true` as YAML does: Snakemake's --config takes them for text unless they are capitalised."""
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def _overridden(stage: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Lay an override over a stage: its grids replace the scale's, its settings are merged into them."""
    settings = {**stage.get("settings", {}), **override.get("settings", {})}
    return {"settings": settings, "grids": override.get("grids", stage.get("grids", []))}


def _stage_plan(stage: str, asked: Mapping[str, Any]) -> StagePlan:
    settings = fields.build(sweep.declaration(stage).Settings, asked.get("settings", {}), f"{stage} settings")
    return StagePlan(stage, tuple(sweep.expand(stage, asked.get("grids", []), f"{stage} grid")), settings)


def _schema_complaint(error: ValidationError) -> str:
    key = ".".join(map(str, error.absolute_path))
    if error.validator == "additionalProperties":
        allowed = ", ".join(error.schema.get("properties", {}))
        unknown = ", ".join(f"'{name}'" for name in set(error.instance) - set(error.schema.get("properties", {})))
        return f"unknown key {unknown}{f' under {key}' if key else ''}; known are {allowed}"
    if error.validator == "type":
        return f"{key or 'the whole'} is {error.instance!r}, allowed is {error.validator_value}"
    return f"{key}: {error.message}" if key else error.message


def _yaml_complaint(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"no valid YAML: {place}{getattr(error, 'problem', error)}"
