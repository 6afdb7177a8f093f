"""What is made of records: tables and pages, and when Snakemake has to make them again."""

import functools
import sys
import traceback
from pathlib import Path

from pipeline.cells import freshness, sources
from pipeline.compat import snakemake_private as private
from pipeline.errors import or_exit


def ends_the_run(function):
    """Have an error of an input function end the run: Snakemake itself would take what is there for up to date."""

    @functools.wraps(function)
    def called(*arguments):
        try:
            return or_exit("snakemake", function, *arguments)
        except Exception:
            traceback.print_exc()
            sys.exit(1)

    return called


class Made:
    """A table or a page as its rule sees it: what it is made of, and whether it has to be made again.

    path: where it is; inputs: its files by name, or functions of wildcards that give them; code, data and words: the
    modules that make it, the other files that they read, and words of their command; beside: a function that gives the
    other files that come with it.
    """

    def __init__(self, path, inputs, code, data=(), words=(), beside=lambda: ()):
        self.path, self.given, self.beside = path, inputs, beside
        self.code, self.data, self.words = code, data, words
        folder, _, name = path.rpartition("/")
        self.recipe_path = f"{folder}/.{name}.recipe"

    @ends_the_run
    def inputs(self, wildcards):
        """Return the input files, and have Snakemake make what it would not miss, or not see to be stale, by itself.

        Where this is there, Snakemake would not miss its inputs, so that a record that is gone would never be measured
        again; nor does it know of modules and templates. Unlike --forcerun, this makes only what the targets need.
        """
        inputs = {name: paths(wildcards) if callable(paths) else paths for name, paths in self.given.items()}
        made, paths = Path(self.path.format(**wildcards)), sum(inputs.values(), [])
        if made.exists():
            private.force(workflow, [path for path in paths if not Path(path).exists()])
            recipe = Path(self.recipe_path.format(**wildcards))
            is_the_same = former_recipe(recipe) == self.recipe(wildcards, paths)
            if not (is_the_same and all(is_as_made(Path(path), recipe) for path in (made, *self.beside()))):
                private.force(workflow, [str(made)])
        return inputs

    def recipe(self, wildcards, input):
        """Return the digest of how this is made now."""
        return freshness.recipe(sources.code_digest(self.code), self.data, input, self.words)


def former_recipe(path):
    """Return the digest of how something was made; None where that cannot be told."""
    return path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else None


def is_as_made(path, recipe):
    """Tell whether a file is as it was made: there, not empty, and not written after its recipe, which comes last."""
    if not path.is_file():
        return False
    file = path.stat()
    return file.st_size > 0 and file.st_mtime_ns <= recipe.stat().st_mtime_ns
