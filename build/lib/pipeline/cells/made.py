"""Tables and pages: what each is made of, by which command, and whether it has to be made again.

Snakemake sees whether an input is newer. For the rest it is given one that is: see `newer_input`.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.cells import freshness, sources

CHANGED = Path(".snakemake/changed")
LATER_NS = 1_000_000
Files = dict[str, list[str]]


def newer_input(path: Path) -> str:
    """Return a file that is a little newer than this one: with it for an input, Snakemake makes what is there again.

    Not newer than that, for what is made has to be newer in turn, by the clock of whichever machine makes it. Its
    content is another for each, for of an input with a content that it knows Snakemake disregards the time.
    """
    newer, time_ns = CHANGED / path, path.stat().st_mtime_ns
    newer.parent.mkdir(parents=True, exist_ok=True)
    newer.write_text(f"{time_ns}\n", encoding="utf-8")
    os.utime(newer, ns=(time_ns + LATER_NS, time_ns + LATER_NS))
    return str(newer)


@dataclass(frozen=True)
class Made:
    """A table or a page as its rule sees it; in paths, wildcards are open: `results/{stage}/cells.csv`.

    name, message: the rule's. outputs: its path as `made`, and what comes with it. files: gives the input files of
    wildcards by name; command: gives, of these, the words of its command but for its path. code, data: the modules that
    make it, and the files that they read. beside: gives files that have to be there too. constraints: of wildcards.
    question: for Snakemake's own report. out: what its command is told to write, where that is not its path.
    """

    name: str
    message: str
    outputs: Mapping[str, str]
    files: Callable[[Any], Files]
    command: Callable[[Files], Sequence[str]]
    code: Collection[str]
    data: Sequence[Path] = ()
    beside: Callable[[], Iterable[Path]] = tuple
    constraints: Mapping[str, str] = field(default_factory=dict)
    question: str = ""
    out: str = ""

    @property
    def path(self) -> str:
        """Where it is."""
        return str(self.outputs["made"])

    @property
    def made_by(self) -> str:
        """The file beside it that holds its recipe, written last."""
        folder, _, name = self.path.rpartition("/")
        return f"{folder}/.{name}.recipe"

    @property
    def log(self) -> str:
        """Where what its command prints goes: logs/timing/bf16.csv.log."""
        return f"logs/{self.path.partition('/')[2]}.log"

    def inputs(self, wildcards: Any) -> Files:
        """Return its input files, and a newer one where it is stale or one is gone, which Snakemake would not miss."""
        files = self.files(wildcards)
        made, made_by = (Path(path.format(**wildcards)) for path in (self.path, self.made_by))
        if not made.exists():
            return files
        is_fresh = freshness.is_as_made((made, *self.beside()), made_by, self.recipe(wildcards))
        are_there = all(Path(path).exists() for paths in files.values() for path in paths)
        return files if is_fresh and are_there else {**files, "changed": [newer_input(made)]}

    def words(self, wildcards: Any) -> list[str]:
        """Return the words of its command."""
        return [*self.command(self.files(wildcards)), "--out", self.out or self.path.format(**wildcards)]

    def recipe(self, wildcards: Any) -> str:
        """Return the digest of how it is made now."""
        inputs = [path for paths in self.files(wildcards).values() for path in paths]
        return freshness.recipe(sources.code_digest(self.code), self.data, inputs, self.words(wildcards))
