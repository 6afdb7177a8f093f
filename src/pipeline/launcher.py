"""The `snakemake` command of this project: Snakemake's own, with stray targets put where they belong."""

import re
import sys

from snakemake.cli import get_argument_parser
from snakemake.cli import main as snakemake_main

KEY_VALUE = re.compile(r"[\w:.-]+=")


def main() -> None:
    """Run Snakemake on the command line's words."""
    snakemake_main(with_targets_last(sys.argv[1:], key_value_options()))


def key_value_options() -> set[str]:
    """Return the options of Snakemake that take any number of NAME=VALUE words."""
    return {
        option
        for action in get_argument_parser()._actions
        if action.nargs in ("+", "*") and isinstance(action.metavar, str) and "=" in action.metavar
        for option in action.option_strings
    }


def with_targets_last(words: list[str], options: set[str]) -> list[str]:
    """Move words that cannot be NAME=VALUE from behind such an option to the end, after `--`.

    Snakemake's parser gives `--resources gpu=8 reports/writeup.md` both words as resources, and fails.
    """
    if "--" in words:
        return words
    kept, targets, inside = [], [], False
    for word in words:
        if word.startswith("-"):
            inside = word in options
        elif inside and not KEY_VALUE.match(word):
            targets.append(word)
            continue
        kept.append(word)
    return [*kept, "--", *targets] if targets else kept
