"""What holds for the section of every stage, on the records of published runs."""

import functools
import tarfile
from pathlib import Path

import numpy as np
import pytest

from pipeline.cells.record import parse_complete
from pipeline.registry import NAMES, stages
from pipeline.report.section_rows import by_stage, section_rows

from .sections import built, faults_of_parts, keys, numbers_that_stay, perturbed, unnamed_rows

WITHOUT_FREE_TEXT = {"ceilings"}
# Numbers of the prose that no figure gives: what follows from cells by formula, what is counted, and whole numbers of a
# method's name or rule.
BY_FORMULA = {
    "timing": {"20"},  # percent from which on a step is said to wait for the host
    "precision": {"13", "7.21e+16"},  # sums; the magnitude of an input
    "memory": {"6.76", "32", "40", "50", "55.4", "194", "224", "2560", "4.1943e+07"},
    "attention": {"2.1", "137", "551"},
    "flash": {"15", "28", "40"},  # problems
    "allreduce": {"1000", "1.5", "1.67"},  # MB; rings of 2 and of 3 times as many ranks
    "ddp": {"11", "20"},  # variants whose weights do not differ; a MB is 2^20 bytes
    "sharding": {"1", "10"},  # the stage of ZeRO; 10 steps, and within 10%
    "fsdp": {"10"},
    "step8b": {"19", "2026"},  # a step, and the year of the leaderboard
    "accounting": {"3", "6", "9", "10", "12", "30", "50", "62", "63.2", "66", "81"},
}
# Published runs are older than this stage.
PUBLISHED = [name for name in NAMES if name != "ops"]
SNAPSHOTS = Path(__file__).parents[2] / "reports"
RUNS = ("h200", "laptop")


@functools.cache
def records(run):
    with tarfile.open(SNAPSHOTS / run / "records.tar.xz") as archive:
        files = [(member.name, archive.extractfile(member).read()) for member in archive if member.isfile()]
    return by_stage(parse_complete(content, name, stages()) for name, content in files)


@functools.cache
def arguments_of(name, run):
    """Return what the section of a stage is built from: its rows and, where it reads other stages, theirs."""
    return section_rows(stages()[name], stages(), records(run))


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_section_of_a_part_of_the_cells_is_whole(name, run, tmp_path_factory):
    rows, *beside = arguments_of(name, run)
    build = built(stages()[name].build_section(), name)
    faults = faults_of_parts(lambda part, folder: build(part, folder, *beside), name, rows, tmp_path_factory)
    assert faults == ({"hostile_text": {"not shown"}} if name in WITHOUT_FREE_TEXT else {})


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_columns_of_rows_tell_the_rows_of_a_cell_apart(name, run):
    assert unnamed_rows(name, arguments_of(name, run)[0]).empty


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", PUBLISHED)
def test_no_number_of_the_prose_stays_when_every_figure_is_another(name, tmp_path):
    rows, *beside = arguments_of(name, "h200")
    rng, build = np.random.default_rng(1), built(stages()[name].build_section(), name)

    def text(changed):
        others = [{other: perturbed(table, keys(other), rng) for other, table in tables.items()} for tables in beside]
        return build(changed, tmp_path, *others)

    assert numbers_that_stay(text, rows, keys(name), BY_FORMULA.get(name, ())) == set()
