"""What is put right or refused before Snakemake has parsed its command line.

Its parser gives `--resources gpu=8 reports/writeup.md` both words as resources, and fails. Snakemake imports its logger
plugins when it makes that parser, in whichever way it was started: `snakemake` or `python -m snakemake`.
"""

import re
import sys
from pathlib import Path

from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from pipeline.errors import UserError, or_exit

# What takes any number of NAME=VALUE words.
OPTIONS = ("--resources", "--res", "--config", "-C")
NAME_VALUE = re.compile(r"[\w-]+=")


def put_targets_last() -> None:
    """Put the targets of this process's command line behind its options, if it is Snakemake's."""
    if is_snakemake(sys.argv[0]):
        sys.argv[1:] = with_targets_last(sys.argv[1:])


def is_snakemake(program: str) -> bool:
    """Tell whether a process of this name, its `sys.argv[0]`, is Snakemake's own command."""
    path = Path(program)
    return path.stem == "snakemake" or path.parts[-2:] == ("snakemake", "__main__.py")


def with_targets_last(words: list[str]) -> list[str]:
    """Move words that cannot be NAME=VALUE from behind such an option to the end, after `--`.

    A command that Snakemake understands stays as it is.
    """
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
    """Return the name of an executor, for a profile; where it is not installed, end Snakemake with one line.

    By itself it would print all of its options.
    """
    or_exit("snakemake", _require_executor, name)
    return name


def _require_executor(name: str) -> None:
    registry = ExecutorPluginRegistry()
    if not registry.is_installed(name):
        package = registry.get_plugin_package_name(name)
        raise UserError(f"this profile needs the executor '{name}', which is not installed: pip install {package}")
