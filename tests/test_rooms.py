"""Who may know whom: what a module reaches by import, wherever the import stands."""

import pytest

from pipeline.cells.freshness import SOURCES, reached_modules
from pipeline.stages import READING_ORDER

SUBJECTS = {"accounting", "attention", "model", "parallel"}
TOOLS = {"cells", "instruments", "report", "stages", "tuning"}


def reached(room):
    """Return the modules that those of a folder reach, as parts of their names."""
    paths = [path.relative_to(SOURCES).with_suffix("") for path in (SOURCES / "pipeline" / room).rglob("*.py")]
    assert paths
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    return [name.split(".") for name in set().union(*map(reached_modules, names))]


def rooms_reached(room):
    return {parts[1] for parts in reached(room) if len(parts) > 1}


@pytest.mark.parametrize("subject", sorted(SUBJECTS))
def test_what_is_measured_knows_nothing_of_how(subject):
    assert not rooms_reached(subject) & TOOLS


def test_instruments_know_neither_what_they_measure_nor_what_for():
    assert not rooms_reached("instruments") & (SUBJECTS | TOOLS - {"instruments"})


def test_what_touches_others_private_names_knows_nothing_of_the_project():
    assert rooms_reached("compat") == {"compat"}


@pytest.mark.parametrize("room", ["cells", "report"])
def test_neither_cells_nor_the_report_know_a_subject(room):
    assert not rooms_reached(room) & SUBJECTS


@pytest.mark.parametrize("stage", READING_ORDER)
def test_no_stage_knows_another(stage):
    stages = {parts[2] for parts in reached(f"stages/{stage}") if parts[1:2] == ["stages"] and len(parts) > 2}
    assert stages == {stage}


@pytest.mark.parametrize("stage", READING_ORDER)
def test_what_measures_does_not_know_what_runs_it(stage):
    # Else a change to how cells are run and kept would have all of them measured again.
    assert not reached_modules(f"pipeline.stages.{stage}.measure") & {"pipeline.cells.run", "pipeline.cells.freshness"}
