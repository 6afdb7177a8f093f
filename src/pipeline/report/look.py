"""Give every name one colour in all charts."""

import zlib
from collections.abc import Iterable

# Okabe and Ito's colours; their yellow is too pale on white, so grey takes its place.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#7F7F7F"
COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, GREY, BLACK)

# One colour, one meaning.
MEANINGS = {
    BLUE: "ours|tuned|bucketed|naive|flat|overlap|ours, in PyTorch|ours, FSDP|measured|faster",
    ORANGE: "torch|cuDNN|FlashAttention-2|efficient|SDPA|flex|torch, FSDP|torch, DDP",
    GREEN: "FlashAttention-4|Liger|torchao|optimizer|optimizer_state|optimizer state",
    "#BCC5CE": "same",
    "#7F8FA6": "undecided",
    GREY: "eager|as written|plain|none|one process|predicted",
    "#3F3F3F": "compiled|plain, compiled",
    BLACK: "fp32|total",
    "#882255": "bf16",
    "#B8860B": "tf32",
    "#5E8C31": "fp16",
    "#8A6FD1": "fp8",
    "#332288": "computation|matmul",
    "#AA4499": "communication",
    VERMILION: "softmax|waiting|slower",
    "#8C510A": "normalisation",
    PURPLE: "elementwise",
    "#661100": "reduction",
    SKY: "copy",
    "#117733": "attention",
    "#64748B": "parameters",
    "#E07A6E": "gradients",
    "#DDCC77": "activations",
    "#A6D8F0": "temporaries",
    "#D0D0D0": "other",
    # Of what has an order, the darker the more.
    "#9BD1C5": "2 ranks|tiny|head_dim 16",
    "#5FB3A3": "4 ranks|nano|small|head_dim 32",
    "#2E8F7E": "micro|medium|head_dim 64",
    "#1A6F60": "6 ranks|large",
    "#0B4F44": "8 ranks|xl|head_dim 128",
    "#06302A": "2.35B|2.7B|10B",
}
KNOWN = {name: colour for colour, names in MEANINGS.items() for name in names.split("|")}


def colour(name: str) -> str:
    """Return the colour that a name has in every chart."""
    # Not hash(), which differs from process to process.
    return KNOWN.get(name) or COLOURS[zlib.crc32(name.encode()) % len(COLOURS)]


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each of the names of one chart, no two alike where there are enough."""
    found: dict[str, str] = {}
    own = {name: colour(name) for name in names}
    spare = [each for each in COLOURS if each not in own.values()]
    for name, each in own.items():
        found[name] = spare.pop(0) if each in found.values() and spare else each
    return found
