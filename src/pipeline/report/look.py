"""Give every name one colour in all charts."""

import json
import zlib
from collections.abc import Iterable
from pathlib import Path

# Okabe and Ito's colours; their yellow is too pale on white, so grey takes its place.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#7F7F7F", "#000000")
# Each colour has one meaning; among ordered names, darker means more.
MEANINGS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
KNOWN = {name: colour for colour, names in MEANINGS.items() for name in names}


def colour(name: str) -> str:
    """Return the colour that a name has in every chart."""
    # Not hash(), which differs from process to process.
    return KNOWN.get(name) or COLOURS[zlib.crc32(name.encode()) % len(COLOURS)]


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each name of one chart; no two are the same as long as there are enough."""
    found: dict[str, str] = {}
    preferred = {name: colour(name) for name in names}
    spare = [each for each in COLOURS if each not in preferred.values()]
    for name, each in preferred.items():
        found[name] = spare.pop(0) if each in found.values() and spare else each
    return found
