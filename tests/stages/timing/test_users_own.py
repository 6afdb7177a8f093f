"""Language models of the user's own in a timing cell."""

from pathlib import Path

import pytest

from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.registry import stages
from pipeline.report.markup import Markdown
from pipeline.report.page_parts import Section
from pipeline.report.users_own import with_users_own, without_users_own
from pipeline.stages.timing.cell import Cell, Settings
from pipeline.stages.timing.measure import measure
from pipeline.subjects.naming import Subject

from ...records import rows_read

FILE = Path(__file__).parents[2] / "subjects/outside/models.py"
TIMING = stages()["timing"]


@pytest.mark.slow
def test_a_model_has_all_rows_of_ours_and_the_section_of_ours_stays_without_it(as_table):
    cell, settings = Cell(size="tiny", context_length=16), Settings(vocab_size=50, max_steps=10, budget_s=0.1)
    models = {"mine": "Decoder", "odd": "SeesTheFuture"}
    subjects = [Subject("model", name, f"{FILE}:{model}") for name, model in models.items()]
    rows = rows_read(measure, cell, settings, Stopwatch(), subjects)
    phases = {impl: [row["phase"] for row in rows if row.get("impl") == impl] for impl in (None, "mine", "odd")}
    assert phases["mine"] == phases["odd"] == phases[None]
    assert {row["status"] for row in rows if row.get("impl") == "odd"} == {"wrong"}

    table = as_table(cell, settings, rows, "a CPU")
    ours = without_users_own(table, TIMING)
    assert list(ours["phase"]) == phases[None]
    section = Section("How fast?", "", Markdown("So."))
    assert with_users_own(section, ours, TIMING) is section
    told = with_users_own(section, table, TIMING)
    (row,) = told.users_own
    assert (row["your own"], row["measured in"]) == ("mine", "timing")
    assert row["fastest of the others"].startswith("TransformerLM, ")
    (failure,) = told.headline
    assert failure.startswith("Your `odd` is wrong: logits of the first 12 tokens change by ")
