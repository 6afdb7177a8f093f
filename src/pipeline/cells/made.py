"""Tables and pages: what each is made of, by which command, and whether it has to be made again."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.cells import sources

CHANGED = Path(".snakemake/changed")
LATER_NS = 1_000_000
Files = dict[str, list[str]]


def newer_input(path: Path) -> str:
    """Return a file that is a little newer than this one: with it for an input, Snakemake makes what is there again."""
    # No newer, for what is made has to be newer in turn, by the clock of whichever machine makes it. And with a content
    # of its own: of an input with a content that it knows Snakemake disregards the time.
    newer, time_ns = CHANGED / path, path.stat().st_mtime_ns
    newer.parent.mkdir(parents=True, exist_ok=True)
    newer.write_text(f"{time_ns}\n", encoding="utf-8")
    os.utime(newer, ns=(time_ns + LATER_NS, time_ns + LATER_NS))
    return str(newer)


@dataclass(frozen=True)
class Made:
    """A table or a page as its rule sees it; in paths, wildcards are open: `results/{stage}/cells.csv`.

    outputs: its path as `made`, and what comes with it. files: gives the input files of wildcards by name; command:
    gives, of these, the words of its command but for its path. code, data: the modules that make it, and the files that
    they read. beside: gives files that have to be there too. question: for Snakemake's own report. out: what its
    command is told to write, where that is not its path.
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
        files, made = self.files(wildcards), Path(self.path.format(**wildcards))
        if not made.exists():
            return files
        are_there = all(Path(path).exists() for paths in files.values() for path in paths)
        return files if are_there and self._is_as_made(wildcards) else {**files, "changed": [newer_input(made)]}

    def _is_as_made(self, wildcards: Any) -> bool:
        """Tell whether all its files are there, not empty, and not written after a recipe that is the one of now."""
        made, made_by = (Path(path.format(**wildcards)) for path in (self.path, self.made_by))
        if not made_by.is_file() or made_by.read_text(errors="replace").strip() != self.recipe(wildcards):
            return False
        written_ns = made_by.stat().st_mtime_ns
        files = [path.stat() if path.is_file() else None for path in (made, *self.beside())]
        return all(file and file.st_size > 0 and file.st_mtime_ns <= written_ns for file in files)

    def words(self, wildcards: Any) -> list[str]:
        """Return the words of its command."""
        return [*self.command(self.files(wildcards)), "--out", self.out or self.path.format(**wildcards)]

    def recipe(self, wildcards: Any) -> str:
        """Return the digest of what it is made with now: code, data files, input paths, command words."""
        inputs = sorted(path for paths in self.files(wildcards).values() for path in paths)
        data = sorted((path.name, sources.file_digest(path)) for path in self.data)
        return sources.digest([sources.code_digest(self.code), data, inputs, self.words(wildcards)])
