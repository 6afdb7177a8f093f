"""Tables and pages: what each is made from, by which command, and whether it has to be made again."""

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
    """Write and return a file slightly newer than an output; as its input, it makes Snakemake rebuild the output."""
    # Only slightly newer, because the rebuilt output must be newer still, by the clock of whichever machine makes it.
    # And with unique content, because Snakemake ignores the mtime of an input whose content has not changed.
    newer, time_ns = CHANGED / path, path.stat().st_mtime_ns
    newer.parent.mkdir(parents=True, exist_ok=True)
    newer.write_text(f"{time_ns}\n", encoding="utf-8")
    os.utime(newer, ns=(time_ns + LATER_NS, time_ns + LATER_NS))
    return str(newer)


@dataclass(frozen=True)
class Made:
    """A table or a page as its rule sees it; paths contain wildcards: `results/{stage}/cells.csv`.

    outputs: its path as `made`, and further outputs. files: returns the input files for given wildcards, by name.
    command: returns the words of its command for these files, without `--out`. code: returns the modules that make it;
    data: the files they read. other_files: returns files that must exist too. question: for Snakemake's own report.
    out: the value of `--out`, if it is not its path.
    """

    name: str
    message: str
    outputs: Mapping[str, str]
    files: Callable[[Any], Files]
    command: Callable[[Files], Sequence[str]]
    code: Callable[[Any], Collection[str]]
    data: Sequence[Path] = ()
    other_files: Callable[[], Iterable[Path]] = tuple
    constraints: Mapping[str, str] = field(default_factory=dict)
    question: str = ""
    out: str = ""

    @property
    def path(self) -> str:
        """Its path."""
        return str(self.outputs["made"])

    @property
    def recipe_path(self) -> str:
        """The file next to it that holds its recipe, written last."""
        folder, _, name = self.path.rpartition("/")
        return f"{folder}/.{name}.recipe"

    @property
    def log(self) -> str:
        """The log of what its command prints: logs/timing/bf16.csv.log."""
        return f"logs/{self.path.partition('/')[2]}.log"

    def inputs(self, wildcards: Any) -> Files:
        """Return its inputs; if it is stale or lacks an input, add a newer file so that Snakemake rebuilds it."""
        files, output = self.files(wildcards), Path(self.path.format(**wildcards))
        if not output.exists():
            return files
        are_there = all(Path(path).exists() for paths in files.values() for path in paths)
        return files if are_there and self._is_up_to_date(wildcards) else {**files, "changed": [newer_input(output)]}

    def _is_up_to_date(self, wildcards: Any) -> bool:
        """Tell whether its recipe is current, and its files exist, are not empty and are no newer than the recipe."""
        output, recipe_path = (Path(path.format(**wildcards)) for path in (self.path, self.recipe_path))
        if not recipe_path.is_file() or recipe_path.read_text(errors="replace").strip() != self.recipe(wildcards):
            return False
        written_ns = recipe_path.stat().st_mtime_ns
        files = [path.stat() if path.is_file() else None for path in (output, *self.other_files())]
        return all(file and file.st_size > 0 and file.st_mtime_ns <= written_ns for file in files)

    def words(self, wildcards: Any) -> list[str]:
        """Return the words of its command."""
        return [*self.command(self.files(wildcards)), "--out", self.out or self.path.format(**wildcards)]

    def recipe(self, wildcards: Any) -> str:
        """Return a digest of what it would be made from now: code, data files, input paths, command words."""
        inputs = sorted(path for paths in self.files(wildcards).values() for path in paths)
        data = sorted((path.name, sources.file_digest(path)) for path in self.data)
        return sources.digest([sources.code_digest(self.code(wildcards)), data, inputs, self.words(wildcards)])
