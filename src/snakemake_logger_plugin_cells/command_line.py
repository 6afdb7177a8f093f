"""Fix or refuse a command line before Snakemake parses it.

Snakemake's parser takes both words of `--resources gpu=8 reports/writeup.md` as resources, and fails. It imports its
logger plugins when it makes that parser, whether started as `snakemake` or `python -m snakemake`.
"""

import re
import sys
from pathlib import Path

from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

# Options that take any number of NAME=VALUE words.
OPTIONS = ("--resources", "--res", "--config", "-C")
NAME_VALUE = re.compile(r"[\w-]+=")


def put_targets_last() -> None:
    """Move the targets to the end of this process's command line, if it is Snakemake's own."""
    program = Path(sys.argv[0])
    if program.stem == "snakemake" or program.parts[-2:] == ("snakemake", "__main__.py"):
        sys.argv[1:] = with_targets_last(sys.argv[1:])


def with_targets_last(words: list[str]) -> list[str]:
    """Move words after one of OPTIONS that are not NAME=VALUE to the end, after `--`."""
    end = words.index("--") if "--" in words else len(words)
    kept, targets, inside = [], [], False
    for word in words[:end]:
        if word.startswith("-"):
            inside = word in OPTIONS
        elif inside and not NAME_VALUE.match(word):
            targets.append(word)
            continue
        kept.append(word)
    return [*kept, "--", *targets, *words[end + 1 :]] if targets else words


def executor(name: str) -> str:
    """Return an executor's name for a profile; if it is not installed, exit with one line instead of a usage text."""
    registry = ExecutorPluginRegistry()
    if not registry.is_installed(name):
        package = registry.get_plugin_package_name(name)
        sys.exit(f"snakemake: this profile needs the executor '{name}': pip install {package}")
    return name
