"""Language models of the user's own in a timing cell."""

from pathlib import Path

import pytest

from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.registry import stages
from pipeline.report.own import ranked, without_own
from pipeline.stages.timing.cell import Cell, Settings
from pipeline.stages.timing.measure import measure
from pipeline.subjects.naming import Subject

from ...records import rows_read

FILE = Path(__file__).parents[2] / "subjects/outside/models.py"
TIMING = stages()["timing"]


@pytest.mark.slow
def test_a_model_has_all_rows_of_ours_and_is_ranked_beside_it(as_table):
    cell = Cell(size="tiny", context_length=16)
    settings = Settings(vocab_size=50, compiled=False, max_steps=10, budget_s=0.1)
    models = {"mine": "Decoder", "odd": "SeesTheFuture"}
    subjects = [Subject("model", name, f"{FILE}:{model}") for name, model in models.items()]
    rows = rows_read(measure, cell, settings, Stopwatch(), subjects)
    phases = {impl: [row["phase"] for row in rows if row.get("impl") == impl] for impl in (None, "mine", "odd")}
    assert phases["mine"] == phases["odd"] == phases[None]
    assert {row["status"] for row in rows if row.get("impl") == "odd"} == {"wrong"}

    table = as_table(cell, settings, rows, "a CPU")
    assert list(without_own(table, TIMING)["phase"]) == phases[None]
    mine = ranked(table, TIMING).query("own").set_index("impl")
    assert mine["best"]["mine"] == "TransformerLM"
    assert (mine["place"]["mine"], mine["of"]["mine"]) in ((1, 2), (2, 2))
    assert mine["reason"]["odd"].startswith("logits of the first 12 tokens change by ")
