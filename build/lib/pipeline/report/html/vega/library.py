"""The vendored scripts that draw plots; README.md says what they are and where they come from."""

from pathlib import Path

# In the order in which they are loaded.
SCRIPTS = ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js")


def script() -> str:
    """Return the scripts as one."""
    return "\n".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in SCRIPTS)
