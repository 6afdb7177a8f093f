"""Read the user's own model sizes from the configuration, YAML files and the config.json of Hugging Face models."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from pipeline.cells import fields
from pipeline.cells.yaml_files import read_yaml
from pipeline.errors import UserError
from pipeline.formulas.parameters import left_out_parameter_count
from pipeline.formulas.sizes import SHORT_NAME, SIZES, UNMODELLED, OwnSize, complaint


@dataclass(frozen=True)
class _Numbers:
    """The numbers that define a size; 0 means not given."""

    d_model: int = fields.axis(0)
    d_ff: int = fields.axis(0)
    num_layers: int = fields.axis(0)
    num_heads: int = fields.axis(0)
    num_kv_heads: int = fields.axis(0, minimum=0)
    vocab_size: int = fields.axis(0)
    head_dim: int = fields.axis(0)
    tie_embeddings: bool = fields.axis(False)


KEYS = tuple(item.name for item in dataclass_fields(_Numbers))
# The same keys, in order, in a config.json of transformers.
HUGGING_FACE = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "vocab_size", "head_dim", "tie_word_embeddings"),
)
NEEDED = 4  # the first four of both are required
# Model types that match ours except for features in UNMODELLED, with transformers' defaults for keys a file lacks.
MODEL_TYPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8},
    "qwen2": {},
    "qwen3": {"head_dim": 128},
    "phi3": {},
    "gemma": {"head_dim": 256, "tie_word_embeddings": True, "hidden_act": "gelu"},
}
# Well-known types that do not match, and why.
OTHER_TYPES = {
    **dict.fromkeys(("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3", "gpt_oss"), "a mixture of experts"),
    **dict.fromkeys(
        ("gpt2", "opt", "phi", "gpt_neox", "starcoder2"), "two matrices in a feed-forward layer, not three"
    ),
    "olmo": "norms without weights",
    **dict.fromkeys(("olmo2", "olmo3", "gemma2", "gemma3_text"), "norms after attention and feed-forward layers"),
}
# Keys that replace the feed-forward layer by experts.
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size")
AXIS = "size"


def read_sizes(sizes: Any, where: str) -> dict[str, str]:
    """Map the user's names of sizes to their names on an axis `size`, which spell out all numbers.

    sizes: a mapping of names to numbers or to the path of a config.json, or the path of a YAML file that holds one.
    Raises UserError, one line that names the key, its value and what is allowed.
    """
    if isinstance(sizes, str):
        where, sizes = sizes, read_yaml(Path(os.path.expanduser(sizes)))
    if not isinstance(sizes, Mapping):
        raise UserError(f"{where} must be a mapping of names to numbers, or the path of a YAML file, got {sizes!r}")
    return {str(name): _size(str(name), given, f"{where}: {name}").name(str(name)) for name, given in sizes.items()}


def unmodelled(names: Iterable[str]) -> list[str]:
    """Return a line for each of these sizes whose model has features that ours leaves out."""
    sizes = {name: SIZES.get(name) for name in names}  # a stage may have models of its own, which are not in SIZES
    return [
        f"sizes: {name}: not modelled: {', '.join(UNMODELLED[word] for word in size.without)}"
        f" ({left_out_parameter_count(size):,} parameters)"
        for name, size in sizes.items()
        if isinstance(size, OwnSize) and size.without
    ]


def with_sizes(stages: Mapping[str, Any], sizes: Mapping[str, str]) -> dict[str, Any]:
    """Replace the user's names of sizes in each stage's grids by the names that spell out their numbers."""

    def renamed(grid: Mapping[str, Any]) -> dict[str, Any]:
        given = grid.get(AXIS, [])
        names = [sizes.get(name, name) for name in (given if isinstance(given, list) else [given])]
        return {**grid, AXIS: names} if AXIS in grid else {**grid}

    return {
        stage: {**entry, "grids": list(map(renamed, entry["grids"]))} if "grids" in entry else entry
        for stage, entry in stages.items()
    }


def _size(name: str, given: Any, where: str) -> OwnSize:
    if not SHORT_NAME.fullmatch(name):
        raise UserError(f"{where}: a name must be at most 24 letters, digits, _ and .")
    if name in SIZES:
        raise UserError(f"{where}: this name is taken: the pipeline's sizes are {', '.join(SIZES)}")
    numbers, without = _hugging_face(Path(os.path.expanduser(given))) if isinstance(given, str) else (given, ())
    if not isinstance(numbers, Mapping):
        raise UserError(f"{where} must be a mapping of {', '.join(KEYS)}, or the path of a config.json, got {given!r}")
    missing = [key for key in KEYS[:NEEDED] if key not in numbers]
    if missing and {*numbers} <= {*KEYS}:  # otherwise `build` names the unknown key, which may be a misspelt one
        raise UserError(f"{where} has no {', '.join(missing)}")
    checked = asdict(fields.build(_Numbers, numbers, where))
    checked["num_kv_heads"] = checked["num_kv_heads"] or checked["num_heads"]
    tied = checked.pop("tie_embeddings")
    if why := complaint(**checked):
        raise UserError(f"{where}: {why}")
    return OwnSize(**checked, tie_embeddings=tied, without=without)


def _hugging_face(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read the widths and counts of a config.json, and which features in UNMODELLED it uses."""
    config = read_yaml(path)
    kind = config.get("model_type") if isinstance(config, Mapping) else config
    if not isinstance(config, Mapping) or kind not in MODEL_TYPES:
        why = f", which has {OTHER_TYPES[kind]}" if isinstance(kind, str) and kind in OTHER_TYPES else ""
        raise UserError(f"{path}: model_type must be one of {', '.join(MODEL_TYPES)}, got {kind!r}{why}")
    config = MODEL_TYPES[kind] | {key: value for key, value in config.items() if value is not None}
    for key in EXPERTS:
        if config.get(key, 0):
            raise UserError(f"{path}: {key} must be absent, because experts are not modelled, got {config[key]!r}")
    if (share := _positions(config).get("partial_rotary_factor", config.get("partial_rotary_factor", 1))) != 1:
        raise UserError(f"{path}: partial_rotary_factor must be 1, because whole heads are rotated, got {share!r}")
    given = {ours: config.get(theirs) for ours, theirs in zip(KEYS, HUGGING_FACE, strict=True)}
    given = {name: value for name, value in given.items() if value is not None}
    missing = [
        f"{theirs} ({ours})" for ours, theirs in zip(KEYS[:NEEDED], HUGGING_FACE, strict=False) if ours not in given
    ]
    if missing:
        raise UserError(f"{path} has no {', '.join(missing)}")
    return given, tuple(feature for feature, is_used in _unmodelled_features(config).items() if is_used)


def _unmodelled_features(config: Mapping[str, Any]) -> dict[str, bool]:
    """Tell which features in UNMODELLED a config.json uses; some exist only in transformers' code for its type."""
    kind, positions = config["model_type"], _positions(config)
    always_slides = kind in ("mistral", "phi3")
    window = config.get("sliding_window", 4096 if kind == "mistral" else None)
    return {
        "activation": config.get("hidden_act", "silu") not in ("silu", "swish"),
        "bias": kind == "qwen2" or bool(config.get("attention_bias")),
        "output_bias": kind != "qwen2" and bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
        "qk_norm": kind == "qwen3",
        "rope_scaling": positions.get("rope_type", "default") != "default" or "factor" in positions,
        "window": bool(window and config.get("use_sliding_window", always_slides)),
    }


def _positions(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a config.json says about rotary positions besides their base."""
    return next(
        (given for key in ("rope_scaling", "rope_parameters") if isinstance(given := config.get(key), dict)), {}
    )
