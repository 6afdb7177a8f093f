"""Model sizes of the user's own: from the configuration, YAML files and the config.json of Hugging Face models."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from dataclasses import fields as declared
from pathlib import Path
from typing import Any

from pipeline.cells import fields
from pipeline.cells.yaml_files import read_yaml
from pipeline.errors import UserError
from pipeline.formulas.parameters import left_out_parameter_count
from pipeline.formulas.sizes import SHORT_NAME, SIZES, UNMODELLED, OwnSize, complaint


@dataclass(frozen=True)
class _Numbers:
    """What a size is given by; 0 stands for what may be left out."""

    d_model: int = fields.axis(0)
    d_ff: int = fields.axis(0)
    num_layers: int = fields.axis(0)
    num_heads: int = fields.axis(0)
    num_kv_heads: int = fields.axis(0, minimum=0)
    vocab_size: int = fields.axis(0)
    head_dim: int = fields.axis(0)
    tie_embeddings: bool = fields.axis(False)


KEYS = tuple(item.name for item in declared(_Numbers))
# The same in a config.json of transformers.
HUGGING_FACE = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "vocab_size", "head_dim", "tie_word_embeddings"),
)
NEEDED = 4  # the first of both
# Kinds of models that are ours but for words of UNMODELLED, with what transformers takes where a file does not say it.
MODEL_TYPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8},
    "qwen2": {},
    "qwen3": {"head_dim": 128},
    "phi3": {},
    "gemma": {"head_dim": 256, "tie_word_embeddings": True, "hidden_act": "gelu"},
}
# Well-known kinds that are not, and why.
OTHER_TYPES = {
    **dict.fromkeys(("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3", "gpt_oss"), "a mixture of experts"),
    **dict.fromkeys(
        ("gpt2", "opt", "phi", "gpt_neox", "starcoder2"), "two matrices in a feed-forward layer, not three"
    ),
    "olmo": "norms without weights",
    **dict.fromkeys(("olmo2", "olmo3", "gemma2", "gemma3_text"), "norms behind attention and feed-forward layers"),
}
# Keys that ask for experts in place of one feed-forward layer.
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size")
AXIS = "size"


def read_sizes(asked: Any, where: str) -> dict[str, str]:
    """Return the names that stand for sizes on an axis `size` by the user's names of them.

    asked: a mapping of names to numbers, or to the path of a config.json; or the path of a YAML file that holds one.
    Raises UserError, one line that names the key, its value and what is allowed.
    """
    if isinstance(asked, str):
        where, asked = asked, read_yaml(Path(os.path.expanduser(asked)))
    if not isinstance(asked, Mapping):
        raise UserError(f"{where} must be a mapping of names to numbers, or the path of a YAML file, got {asked!r}")
    return {str(name): _size(str(name), given, f"{where}: {name}").name(str(name)) for name, given in asked.items()}


def unmodelled(names: Iterable[str]) -> list[str]:
    """Say of each of these sizes in a line what the user's model has that ours leaves out, if there is such a thing."""
    sizes = {name: SIZES.get(name) for name in names}  # another stage may have models of its own
    return [
        f"sizes: {name}: not modelled: {', '.join(UNMODELLED[word] for word in size.without)}"
        f" ({left_out_parameter_count(size):,} parameters)"
        for name, size in sizes.items()
        if isinstance(size, OwnSize) and size.without
    ]


def with_sizes(asked: Mapping[str, Any], sizes: Mapping[str, str]) -> dict[str, Any]:
    """Return what is asked of each stage, in whose grids the names that say numbers replace the user's names."""

    def renamed(grid: Mapping[str, Any]) -> dict[str, Any]:
        given = grid.get(AXIS, [])
        names = [sizes.get(name, name) for name in (given if isinstance(given, list) else [given])]
        return {**grid, AXIS: names} if AXIS in grid else {**grid}

    return {
        stage: {**words, "grids": list(map(renamed, words["grids"]))} if "grids" in words else words
        for stage, words in asked.items()
    }


def _size(name: str, given: Any, where: str) -> OwnSize:
    if not SHORT_NAME.fullmatch(name):
        raise UserError(f"{where}: a name must be at most 24 letters, digits, _ and .")
    if name in SIZES:
        raise UserError(f"{where}: the pipeline has a size of this name; it has {', '.join(SIZES)}")
    numbers, without = _hugging_face(Path(os.path.expanduser(given))) if isinstance(given, str) else (given, ())
    if not isinstance(numbers, Mapping):
        raise UserError(f"{where} must be a mapping of {', '.join(KEYS)}, or the path of a config.json, got {given!r}")
    missing = [key for key in KEYS[:NEEDED] if key not in numbers]
    if missing and {*numbers} <= {*KEYS}:  # else an unknown key is told, which may be one of these misspelt
        raise UserError(f"{where} has no {', '.join(missing)}")
    whole = asdict(fields.build(_Numbers, numbers, where))
    whole["num_kv_heads"] = whole["num_kv_heads"] or whole["num_heads"]
    tied = whole.pop("tie_embeddings")
    if why := complaint(**whole):
        raise UserError(f"{where}: {why}")
    return OwnSize(**whole, tie_embeddings=tied, without=without)


def _hugging_face(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read the widths and counts of a config.json, and which words of UNMODELLED it asks for."""
    config = read_yaml(path)
    kind = config.get("model_type") if isinstance(config, Mapping) else config
    if not isinstance(config, Mapping) or kind not in MODEL_TYPES:
        why = f", which has {OTHER_TYPES[kind]}" if isinstance(kind, str) and kind in OTHER_TYPES else ""
        raise UserError(f"{path}: model_type must be one of {', '.join(MODEL_TYPES)}, got {kind!r}{why}")
    config = MODEL_TYPES[kind] | {key: value for key, value in config.items() if value is not None}
    for key in EXPERTS:
        if config.get(key, 0):
            raise UserError(f"{path}: {key} must be absent, for experts are not modelled, got {config[key]!r}")
    if (share := _positions(config).get("partial_rotary_factor", config.get("partial_rotary_factor", 1))) != 1:
        raise UserError(f"{path}: partial_rotary_factor must be 1, for all of a head is rotated, got {share!r}")
    given = {ours: config.get(theirs) for ours, theirs in zip(KEYS, HUGGING_FACE, strict=True)}
    given = {name: value for name, value in given.items() if value is not None}
    missing = [
        f"{theirs} ({ours})" for ours, theirs in zip(KEYS[:NEEDED], HUGGING_FACE, strict=False) if ours not in given
    ]
    if missing:
        raise UserError(f"{path} has no {', '.join(missing)}")
    return given, tuple(word for word, is_asked in _asked(config).items() if is_asked)


def _asked(config: Mapping[str, Any]) -> dict[str, bool]:
    """Tell for each word of UNMODELLED whether a config.json asks for it; transformers has some in code alone."""
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
    """Return what a config.json says of rotary positions beyond their base."""
    return next(
        (given for key in ("rope_scaling", "rope_parameters") if isinstance(given := config.get(key), dict)), {}
    )
