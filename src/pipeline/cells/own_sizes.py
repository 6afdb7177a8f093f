"""Model sizes of the user's own: from the configuration, YAML files and the config.json of Hugging Face models."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from dataclasses import fields as declared
from pathlib import Path
from typing import Any

from pipeline.cells import fields
from pipeline.cells.yaml_files import read_yaml
from pipeline.errors import UserError
from pipeline.formulas.sizes import SHORT_NAME, SIZES, OwnSize, complaint


@dataclass(frozen=True)
class _Numbers:
    """What a size is given by; 0 stands for what may be left out, the last three."""

    d_model: int = fields.axis(0)
    d_ff: int = fields.axis(0)
    num_layers: int = fields.axis(0)
    num_heads: int = fields.axis(0)
    num_kv_heads: int = fields.axis(0, minimum=0)
    vocab_size: int = fields.axis(0)
    head_dim: int = fields.axis(0)


KEYS = tuple(item.name for item in declared(_Numbers))
# The same in a config.json of the Llama or Qwen kind: transformers' LlamaConfig, Qwen2Config, Qwen3Config.
HUGGING_FACE = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "vocab_size", "head_dim"),
)
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
AXIS = "size"


def read_sizes(asked: Any, where: str) -> dict[str, str]:
    """Return the names that stand for sizes on an axis `size` by the user's names of them.

    asked: a mapping of names to numbers, or to the path of a config.json; or the path of a YAML file that holds one.
    Raises UserError, one line that names the key, its value and what is allowed.
    """
    if isinstance(asked, str):
        where, asked = asked, read_yaml(Path(asked))
    if not isinstance(asked, Mapping):
        raise UserError(f"{where} must be a mapping of names to numbers, or the path of a YAML file, got {asked!r}")
    return {str(name): _size(str(name), given, f"{where}: {name}").name(str(name)) for name, given in asked.items()}


def with_sizes(grids: list[dict[str, Any]], sizes: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return grids in which the names of sizes that say their numbers stand for the user's names."""

    def renamed(axis: str, value: Any) -> Any:
        if axis != AXIS:
            return value
        return [sizes.get(each, each) for each in value] if isinstance(value, list) else sizes.get(value, value)

    return [{axis: renamed(axis, value) for axis, value in grid.items()} for grid in grids]


def _size(name: str, given: Any, where: str) -> OwnSize:
    if not SHORT_NAME.fullmatch(name):
        raise UserError(f"{where}: a name must be at most 24 letters, digits, _ and .")
    if name in SIZES:
        raise UserError(f"{where}: the pipeline has a size of this name; it has {', '.join(SIZES)}")
    numbers = _hugging_face(Path(given)) if isinstance(given, str) else given
    if not isinstance(numbers, Mapping):
        raise UserError(f"{where} must be a mapping of {', '.join(KEYS)}, or the path of a config.json, got {given!r}")
    missing = [key for key in KEYS[:4] if key not in numbers]
    if missing:
        raise UserError(f"{where} has no {', '.join(missing)}")
    whole = asdict(fields.build(_Numbers, numbers, where))
    whole["num_kv_heads"] = whole["num_kv_heads"] or whole["num_heads"]
    if why := complaint(**whole):
        raise UserError(f"{where}: {why}")
    return OwnSize(**whole)


def _hugging_face(path: Path) -> dict[str, Any]:
    """Read the widths and counts of a config.json; biases, tied embeddings, scaled positions are not modelled."""
    config = read_yaml(path)  # JSON is YAML
    if not isinstance(config, Mapping) or config.get("model_type") not in MODEL_TYPES:
        kind = config.get("model_type") if isinstance(config, Mapping) else config
        raise UserError(f"{path}: model_type must be one of {', '.join(MODEL_TYPES)}, got {kind!r}")
    given = {ours: config.get(theirs) for ours, theirs in zip(KEYS, HUGGING_FACE, strict=True)}
    return {name: value for name, value in given.items() if value is not None}
