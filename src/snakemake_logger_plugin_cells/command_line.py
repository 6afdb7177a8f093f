"""Fix or refuse a command line before Snakemake parses it.

Snakemake's parser takes both words of `--resources gpu=8 reports/writeup.md` as resources, and fails. Its message
about a broken file of `--configfile` does not name the file. It imports its logger plugins when it makes that parser,
whether started as `snakemake` or `python -m snakemake`.
"""

import re
import sys
from pathlib import Path

from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

# Options that take any number of NAME=VALUE words.
OPTIONS = ("--resources", "--res", "--config", "-C")
CONFIGFILE_OPTIONS = ("--configfile", "--configfiles")
NAME_VALUE = re.compile(r"[\w-]+=")


def put_targets_last() -> None:
    """Move the targets to the end of this process's command line if it is Snakemake's own; check its files first."""
    program = Path(sys.argv[0])
    if program.stem == "snakemake" or program.parts[-2:] == ("snakemake", "__main__.py"):
        check_configfiles(sys.argv[1:])
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


def check_configfiles(words: list[str]) -> None:
    """Exit with one line if a file of `--configfile` cannot be read."""
    inside = False
    for word in words:
        option, _, path = word.partition("=")
        if word.startswith("-"):
            inside = option in CONFIGFILE_OPTIONS
        else:
            path = word
        if inside and path and not _is_mapping(Path(path)):
            from pipeline.cells.config import read_config
            from pipeline.errors import or_exit

            or_exit(read_config, Path(path))


def _is_mapping(path: Path) -> bool:
    """Tell whether a file is YAML with keys; more lenient than this workflow, because the file may be another's."""
    import yaml

    if path.exists() and not path.is_file():  # reading a pipe would empty it
        return True
    try:
        return isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)
    except (OSError, ValueError, yaml.YAMLError):
        return False


def executor(name: str) -> str:
    """Return an executor's name for a profile; if it is not installed, exit with one line instead of a usage text."""
    registry = ExecutorPluginRegistry()
    if not registry.is_installed(name):
        package = registry.get_plugin_package_name(name)
        sys.exit(f"snakemake: this profile needs the executor '{name}': pip install {package}")
    return name
