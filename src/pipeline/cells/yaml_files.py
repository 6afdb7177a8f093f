"""Read handwritten YAML or JSON and check it against a schema; a mistake becomes one line with its place."""

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
    """Return the content of a plain file; raises UserError if it is missing or larger than `most_bytes`."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe would block, a device never ends
            raise UserError(f"cannot read {path}: it must be a plain file")
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from None
    if len(content) > most_bytes:
        raise UserError(f"cannot read {path}: it is larger than {most_bytes / 2**20:.0f} MiB")
    return content


def read_yaml(path: Path) -> Any:
    """Read a YAML file, or JSON if it is called *.json; raises UserError, with the place of a syntax error."""
    try:
        text = file_content(path, MOST_BYTES).decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}: line {line} is not UTF-8: byte 0x{error.object[error.start]:02x}") from None
    if path.suffix != ".json":
        return yaml_value(text, str(path))
    try:
        return json.loads(text)  # may contain tabs, which YAML does not allow
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON: {error}") from None


def yaml_value(text: str, where: str) -> Any:
    """Parse text as YAML; raises UserError with the place of a mistake. where: the source's name in messages."""
    try:
        return yaml.load(text, Loader=_Loader)
    except RecursionError:
        complaint = "its keys and lists are nested too deeply"
    except ReaderError as error:
        complaint = f"line {text.count(chr(10), 0, error.position) + 1}: character #x{error.character:04x}"
    except (yaml.YAMLError, ValueError) as error:  # ValueError: 2026-99-99, which YAML takes for a date
        problem_mark = getattr(error, "problem_mark", None)
        place = f"line {problem_mark.line + 1}, column {problem_mark.column + 1}: " if problem_mark else ""
        context_mark = getattr(error, "context_mark", None)
        within = (
            f", {getattr(error, 'context', '')} that begins in line {context_mark.line + 1}" if context_mark else ""
        )
        complaint = f"{place}{getattr(error, 'problem', error)}{within}"
    raise UserError(f"{where}: not valid YAML: {complaint}")


class _Loader(yaml.SafeLoader):
    """A safe loader that rejects a key given twice, where PyYAML itself silently drops the first."""

    def construct_document(self, node: yaml.Node) -> Any:
        """Build the whole value at once, so that PyYAML rejects an anchor that contains itself."""
        self.deep_construct = True
        return super().construct_document(node)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)  # `anchor` is text or None; the stubs say dict
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
    """Return one line on the clearest violation of a JSON schema, or None if the value is valid."""
    error = best_match(_validator(schema).iter_errors(instance))
    if error is None:
        return None
    key = ".".join(map(str, error.absolute_path))
    # Any, because the stubs allow an error without these, which no validator raises.
    rules: Any = error.schema
    value: Any = error.instance
    expected: Any = error.validator_value
    got = json.dumps(value, default=str)[:60]
    match error.validator:
        case "additionalProperties" if "properties" in rules:
            unknown = ", ".join(f"'{name}'" for name in value if name not in rules["properties"])
            under = f" under {key}" if key else ""
            return f"unknown key {unknown}{under}: must be one of {', '.join(rules['properties'])}"
        case "required":
            missing = (f"{key}.{name}" if key else name for name in expected if name not in value)
            return f"it has no {', '.join(missing)}"
        case "type":
            kinds = (TYPE_NAMES[kind] for kind in ([expected] if isinstance(expected, str) else expected))
            return f"{key or 'it'} must be {' or '.join(kinds)}, got {got}"
        case "oneOf" | "minItems" if "description" in rules:
            return f"{key} must be {rules['description']}, got {got}"
    return f"{key}: {error.message[:200]}"
