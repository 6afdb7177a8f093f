"""Read YAML or JSON that a person wrote: a mistake is one line with its place."""

import json
from pathlib import Path
from typing import Any

import yaml
from yaml.error import MarkedYAMLError
from yaml.reader import ReaderError

from pipeline.errors import UserError

MOST_BYTES = 2**20


def read_yaml(path: Path) -> Any:
    """Read a YAML file, or JSON where its name ends with .json.

    Raises UserError with the place of a typo, and for what is no file or too large for one.
    """
    content = _content(path)
    try:
        text = content.decode()
        if path.suffix == ".json":  # may hold tabs, which YAML has not
            return json.loads(text)
        return yaml.load(text, Loader=_Loader)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}: line {line} is no UTF-8: byte 0x{error.object[error.start]:02x}") from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(f"{path}: no valid YAML: line {line}: character #x{error.character:04x}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: no valid JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: 2026-99-99, a date to YAML
        raise UserError(f"{path}: no valid YAML: {_yaml_complaint(error)}") from None
    except RecursionError:
        raise UserError(f"{path}: no valid YAML: its keys and lists are nested too deep") from None


def _content(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for, a device never ends
            raise UserError(f"cannot read {path}: it must be a plain file")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from None
    if len(content) > MOST_BYTES:
        raise UserError(f"cannot read {path}: it is larger than {MOST_BYTES / 2**20:.0f} MiB")
    return content


def yaml_value(text: str, where: str) -> Any:
    """Read a value from the command line as YAML; raises UserError where it is none."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        complaint = "nested too deep" if isinstance(error, RecursionError) else _yaml_complaint(error)
        raise UserError(f"{where}: no valid YAML: {complaint}") from None


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


def _yaml_complaint(error: yaml.YAMLError | ValueError) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"{place}{getattr(error, 'problem', error)}"
