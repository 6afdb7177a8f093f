"""Model sizes: the pipeline's, by name, and the user's own, whose names spell out their dimensions."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ModelSize:
    """The widths and counts of a transformer."""

    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int
    tie_embeddings = False  # whether embedding and head share one matrix

    @property
    def head_dim(self) -> int:
        """The width of one attention head: d_model / num_heads."""
        return self.d_model // self.num_heads

    @property
    def attention_width(self) -> int:
        """The width of a token's queries, or attention output, over all heads: d_model, unless head_dim is given."""
        return self.head_dim * self.num_heads

    @property
    def kv_width(self) -> int:
        """The width of a token's keys, or values, over all heads: the queries' width, unless query heads share them."""
        return self.attention_width

    def vocabulary(self, asked: int) -> int:
        """Return the vocabulary size: the one asked for, unless this size has its own."""
        return asked

    def widths(self) -> dict[str, Any]:
        """Return the arguments that give a `TransformerLM` this size, without the vocabulary."""
        return {name: value for name, value in asdict(self).items() if name not in ("vocab_size", "without")}


@dataclass(frozen=True)
class OwnSize(ModelSize):
    """A size of the user's own, which may have fewer key/value heads, another head_dim and its own vocabulary.

    vocab_size: 0 for the stage's; head_dim: 0 for d_model / num_heads; without: the entries of UNMODELLED that the
    user's model has and ours lacks. Its name is `NAME-d512-f1536-l6-h8-kv2-v32000`, plus `-hd128` for another head_dim,
    `-tied` and `-without.bias.qk_norm` if they apply, so that the name in a record defines the size completely.
    """

    num_kv_heads: int
    vocab_size: int = 0
    head_dim: int = 0
    tie_embeddings: bool = False
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Use the default head_dim if none is given."""
        object.__setattr__(self, "head_dim", self.head_dim or self.d_model // self.num_heads)

    @property
    def kv_width(self) -> int:
        """The width of a token's keys, or values, over all heads."""
        return self.head_dim * self.num_kv_heads

    def vocabulary(self, asked: int) -> int:
        """Return its own vocabulary size, or the one asked for."""
        return self.vocab_size or asked

    def name(self, short: str) -> str:
        """Return its name on the axis `size`; short: what the user calls it."""
        numbers = [self.d_model, self.d_ff, self.num_layers, self.num_heads, self.num_kv_heads, self.vocab_size]
        words = [f"{letter}{number}" for letter, number in zip(LETTERS, numbers, strict=True)]
        more = {
            f"hd{self.head_dim}": self.attention_width != self.d_model,
            "tied": self.tie_embeddings,
            ".".join(["without", *(word for word in UNMODELLED if word in self.without)]): self.without,
        }
        return "-".join([short, *words, *(word for word, is_so in more.items() if is_so)])


LETTERS = ("d", "f", "l", "h", "kv", "v")
# What other models have and ours leaves out, by the word for it in names.
UNMODELLED = {
    "activation": "an activation that is not SiLU",
    "bias": "biases of q, k and v",
    "output_bias": "biases of attention's output",
    "mlp_bias": "biases of the feed-forward layers",
    "qk_norm": "norms of queries and keys",
    "rope_scaling": "scaled positions",
    "window": "sliding windows",
}
SHORT_NAME = re.compile(r"[A-Za-z0-9_.]{1,24}", re.ASCII)
# Each size has exactly one spelling.
_WORDS = "-".join([SHORT_NAME.pattern, *(rf"{letter}(0|[1-9]\d{{0,7}})" for letter in LETTERS)])
_NUMBERS = re.compile(
    rf"{_WORDS}(?:-hd([1-9]\d{{0,7}}))?(-tied)?(?:-without((?:\.(?:{'|'.join(UNMODELLED)}))+))?", re.ASCII
)


class Sizes(Mapping[str, Any]):
    """Sizes by name; a name that spells out dimensions is a user's own size, which is not listed."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known

    def __getitem__(self, name: str) -> Any:
        if name in self._known:
            return self._known[name]
        match = _NUMBERS.fullmatch(name)
        if match is None:
            raise KeyError(name)
        *numbers, tied, without = match.groups(default="")
        whole: list[Any] = [*(int(number or 0) for number in numbers), tied != "", tuple(without.split(".")[1:])]
        return OwnSize(*whole)

    def __contains__(self, name: object) -> bool:
        return name in self._known or (isinstance(name, str) and _is_sound(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def _is_sound(name: str) -> bool:
    match = _NUMBERS.fullmatch(name)
    if match is None or complaint(*(int(number or 0) for number in match.groups()[:-2])) is not None:
        return False
    size = SIZES[name]
    return isinstance(size, OwnSize) and name == size.name(name.partition("-")[0])


def complaint(
    d_model: int, d_ff: int, num_layers: int, num_heads: int, num_kv_heads: int, vocab_size: int, head_dim: int = 0
) -> str | None:
    """Return one line on why these numbers do not make a model, or None if they do."""
    numbers = {"d_model": d_model, "d_ff": d_ff, "num_layers": num_layers, "num_heads": num_heads}
    for key, value in (numbers | {"num_kv_heads": num_kv_heads}).items():
        if not 1 <= value < 10**8:
            return f"{key} must be at least 1 and below 100 million, got {value}"
    if vocab_size < 0 or vocab_size == 1 or vocab_size >= 10**8:
        return f"vocab_size must be at least 2 and below 100 million, or 0 for that of the stage, got {vocab_size}"
    if not 0 <= head_dim < 10**8:
        return f"head_dim must be below 100 million, or 0 for d_model / num_heads, got {head_dim}"
    if not head_dim and d_model % num_heads:
        return f"num_heads must divide d_model {d_model} where no head_dim is given, got {num_heads}"
    head_dim = head_dim or d_model // num_heads
    if head_dim % 2:
        return f"head_dim must be even for rotary positions, got {head_dim}"
    if num_heads % num_kv_heads:
        return f"num_kv_heads must divide num_heads {num_heads}, got {num_kv_heads}"
    return None


SIZES: Mapping[str, ModelSize] = Sizes(
    {
        # for a CPU
        "tiny": ModelSize(d_model=64, d_ff=256, num_layers=2, num_heads=2),
        "nano": ModelSize(d_model=128, d_ff=512, num_layers=4, num_heads=4),
        "micro": ModelSize(d_model=256, d_ff=1024, num_layers=4, num_heads=4),
        # for a GPU
        "small": ModelSize(d_model=768, d_ff=3072, num_layers=12, num_heads=12),
        "medium": ModelSize(d_model=1024, d_ff=4096, num_layers=24, num_heads=16),
        "large": ModelSize(d_model=1280, d_ff=5120, num_layers=36, num_heads=20),
        "xl": ModelSize(d_model=1600, d_ff=6400, num_layers=48, num_heads=25),
        # Named after a model with two feed-forward matrices per layer; with SwiGLU's three it has 3.4e9 parameters.
        # Since 2026 the assignment calls it xl; its former xl is the one above.
        "2.7B": ModelSize(d_model=2560, d_ff=10240, num_layers=32, num_heads=32),
        # Its training state in fp32, 205 GB, fits no single GPU.
        "10B": ModelSize(d_model=4608, d_ff=12288, num_layers=50, num_heads=36),
        # Wide and shallow: few, large matrix products.
        "2.35B": ModelSize(d_model=3200, d_ff=25600, num_layers=8, num_heads=4),
        # The course's leaderboard: one step at context 32,768 on two GPUs.
        "8B": ModelSize(d_model=4096, d_ff=11008, num_layers=34, num_heads=32),
    }
)
