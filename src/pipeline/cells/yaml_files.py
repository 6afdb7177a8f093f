"""Read YAML or JSON that a person wrote, and check it against a schema: a mistake is one line with its place."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry, Resource
from yaml.error import MarkedYAMLError
from yaml.reader import ReaderError

from pipeline.errors import UserError

MOST_BYTES = 2**20
TYPE_NAMES = {
    "string": "text",
    "object": "an object",
    "array": "a list",
    "boolean": "true or false",
    "number": "a number",
    "integer": "a whole number",
    "null": "null",
}


def file_content(path: Path, most_bytes: int) -> bytes:
    """Return what a plain file holds; raises UserError where there is none, or it holds more than so many bytes."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for, a device never ends
            raise UserError(f"cannot read {path}: it must be a plain file")
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from None
    if len(content) > most_bytes:
        raise UserError(f"cannot read {path}: it is larger than {most_bytes / 2**20:.0f} MiB")
    return content


def read_yaml(path: Path) -> Any:
    """Read a YAML file, or JSON by its name; raises UserError with the place of a typo, or for what is no such file."""
    try:
        text = file_content(path, MOST_BYTES).decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}: line {line} is no UTF-8: byte 0x{error.object[error.start]:02x}") from None
    if path.suffix != ".json":
        return yaml_value(text, str(path))
    try:
        return json.loads(text)  # may hold tabs, which YAML has not
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: no valid JSON: {error}") from None


def yaml_value(text: str, where: str) -> Any:
    """Read a value as YAML; raises UserError, which calls its source `where`, with the place of a mistake."""
    try:
        return yaml.load(text, Loader=_Loader)
    except RecursionError:
        complaint = "its keys and lists are nested too deep"
    except ReaderError as error:
        complaint = f"line {text.count(chr(10), 0, error.position) + 1}: character #x{error.character:04x}"
    except (yaml.YAMLError, ValueError) as error:  # ValueError: 2026-99-99, a date to YAML
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        begun = getattr(error, "context_mark", None)
        within = f", {getattr(error, 'context', '')} that begins in line {begun.line + 1}" if begun else ""
        complaint = f"{place}{getattr(error, 'problem', error)}{within}"
    raise UserError(f"{where}: no valid YAML: {complaint}")


class _Loader(yaml.SafeLoader):
    """Reads plain YAML, in which a key that is given twice is a mistake: PyYAML itself forgets the first."""

    def construct_document(self, node: yaml.Node) -> Any:
        """Build the whole value at once: PyYAML then refuses an anchor inside of itself, which has no end."""
        self.deep_construct = True
        return super().construct_document(node)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)  # a text or None; the stubs say dict
        first: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and first.setdefault((key.tag, key.value), key) is not key:
                line = first[key.tag, key.value].start_mark.line + 1
                raise MarkedYAMLError(
                    problem=f"'{key.value}' is given twice, first in line {line}", problem_mark=key.start_mark
                )
        return node


@cache
def _validator(schema: Path) -> Draft202012Validator:
    # A schema may refer to another in its folder. mypy does not see that attrs strips the underscore of _retrieve.
    registry: Registry[Any] = Registry(
        retrieve=lambda name: Resource.from_contents(read_yaml(schema.parent / name))  # type: ignore[call-arg]
    )
    return Draft202012Validator(read_yaml(schema), registry=registry)


def schema_complaint(instance: Any, schema: Path) -> str | None:
    """Return one line on where a value most clearly breaks a JSON schema, or None where it does not."""
    error = best_match(_validator(schema).iter_errors(instance))
    if error is None:
        return None
    key = ".".join(map(str, error.absolute_path))
    # The stubs allow for an error without these, which no validator raises.
    rules: Any = error.schema
    found: Any = error.instance
    wanted: Any = error.validator_value
    got = json.dumps(found, default=str)[:60]
    match error.validator:
        case "additionalProperties" if "properties" in rules:
            unknown = ", ".join(f"'{name}'" for name in found if name not in rules["properties"])
            under = f" under {key}" if key else ""
            return f"unknown key {unknown}{under}: must be one of {', '.join(rules['properties'])}"
        case "required":
            missing = (f"{key}.{name}" if key else name for name in wanted if name not in found)
            return f"it has no {', '.join(missing)}"
        case "type":
            kinds = (TYPE_NAMES[kind] for kind in ([wanted] if isinstance(wanted, str) else wanted))
            return f"{key or 'the whole'} must be {' or '.join(kinds)}, got {got}"
        case "oneOf" | "minItems" if "description" in rules:
            return f"{key} must be {rules['description']}, got {got}"
    return f"{key}: {error.message[:200]}"
