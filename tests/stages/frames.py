"""Build small frames of a stage, as its report gets them, so that a test names only the columns that matter."""

import re
from dataclasses import asdict

import pandas as pd

from pipeline.registry import stages
from pipeline.report.frame import build, fold
from pipeline.report.section import Section

from ..records import CPU, derived, stage_of
from ..report.frames import samples

# How a missing value looks when it is written anyway.
GAP = re.compile(r"\bnan\b|\bNone\b|\binf\b|\bNaT\b|<NA>")


def timed(median_ms, spread=0.004, **columns):
    """Return a row with a time; spread: about the range of its samples, as a share of the time."""
    values = samples(median_ms, spread)
    return {
        **{"status": "ok", "reason": None, "samples_ms": values, "median_ms": median_ms},
        **{"q1_ms": values[3], "q3_ms": values[8], "std_ms": 0.01, "setting_unstable_rel_error": 0.05},
        **{"cards": "a GPU", **columns},
    }


def failed(status="oom", **columns):
    return {"status": status, "reason": "why", "cards": "a GPU", **columns}


def step(impl, median_ms, **columns):
    """Return a whole step on two ranks."""
    cell = {"size": "xl", "precision": "bf16", "world_size": 2, "batch_size_per_rank": 4, "context_length": 1024}
    whole = {"measures": "time", "phase": "train_step", "clock": "host", "limited_by": "gpu", "weight_tolerance": 0.01}
    found = {**cell, **whole, "impl": impl, **columns}
    tokens = found["world_size"] * found["batch_size_per_rank"] * found["context_length"]
    return timed(median_ms, **{"tokens": tokens, **found})


def other(impl, measures, **columns):
    """Return a row of another measurement of a way's step, without a time."""
    timeless = dict.fromkeys(("median_ms", "samples_ms", "phase", "clock", "q1_ms", "q3_ms"))
    return step(impl, 1.0) | timeless | {"measures": measures, **columns}


def frame_of(name, rows):
    """Fold rows into a stage's frame, with every column that the stage declares."""
    stage, table = stages()[name], pd.DataFrame(list(rows))
    table = table.reindex(columns=list(dict.fromkeys([*table.columns, *stage.table_columns])))
    return fold(table, [*(axis for axis in stage.axes if axis != "repeat"), *stage.row_types.key_columns()])


def table(cell, settings, rows):
    known = {"cell": asdict(cell), "settings": asdict(settings), "machine": CPU}
    return build(stage_of(cell), [{**known, "rows": derived(cell, settings, rows)}])


def shown(section: Section):
    """Return a section's parts by name, including those on the course's page."""
    return {part.name: part for part in (*section.parts, *section.for_course) if not part.is_empty}


def written(section: Section):
    """Return all the text of a section, with only the titles of its charts."""
    parts = [part.markdown() if hasattr(part, "markdown") else part.title for part in shown(section).values()]
    return "\n".join([section.answer, *parts])


def gaps(section: Section):
    """Return the traces of missing values in a section's text."""
    return GAP.findall(written(section))
