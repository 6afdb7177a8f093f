"""Rules for tables and pages."""

import re

from pipeline.cells.config import config_words
from pipeline.report.page_request import PageRequest, write_page_request
from pipeline.snapshots.publish import shown_images

TABULATOR = sources.reached_modules("pipeline.cells.tabulate")
PAGES_CODE = sources.reached_modules("pipeline.report.pages", *(f"{stage.package}.report" for stage in WRITTEN))
NOTES = [note for stage in WRITTEN for note in sources.source_path(f"{stage.package}.report").parent.glob("*.md")]
# What the pages are asked to show, in a file, because a command line cannot hold thousands of records.
PAGE_REQUEST = Path(".snakemake/pages.json")


def shown(path, caption, category, kind, of, **more):
    """Return a path that Snakemake's own report shows."""
    return report(path, caption=f"../report/{caption}.rst", category=category, labels={"kind": kind, "of": of}, **more)


def tables(stage):
    """Return the tables of a stage's rows, one for each value on the split axis."""
    of = f"{{{stage.split_axis}}}"
    return Made(
        f"tabulate_{stage.name}",
        "table {output.made}",
        {"made": shown(f"{stage.folder}/{of}.csv", "table", stage.name, "table", of)},
        lambda wildcards: {"records": stage.records_of(wildcards)},
        lambda files: ["tabulate", "rows", *files["records"]],
        lambda _: TABULATOR | stage.declarations,
        constraints={stage.split_axis: stage.value_pattern()},
        question=stage.question,
    )


def page_request():
    """Return what the pages show: the records of this run, and which cells of the scale have none."""
    # If existing records are only rendered and no scale is named, none was asked for.
    has_scale = PLAN.measure or config["scale"] != "auto"
    return PageRequest(
        [record for stage in WRITTEN for record in stage.records()],
        PLAN.scale if has_scale else "",
        [missing for stage in STAGES.values() for missing in stage.missing()] if has_scale else [],
        or_exit(outdated),
        config_words(config, PLAN) if PLAN.measure else [],
        in_clone=ROOT == Path.cwd(),
    )


def rendered(wildcards):
    """Return the inputs of the pages; tables are among them because the pages link to them."""
    or_exit(write_page_request, page_request(), PAGE_REQUEST)
    logger.info("", extra={"report_page": REPORT_PAGE})  # for our logger plugin
    return {
        "records": [record for stage in WRITTEN for record in stage.records()],
        "cells": [f"{RESULTS}/{stage.name}/cells.csv" for stage in WRITTEN],
        "tables": [table for stage in WRITTEN for table in stage.tables()],
    }


MADE = [
    *map(tables, WRITTEN),
    Made(
        "tabulate_cells",
        "table {output.made}",
        {"made": shown("results/{stage}/cells.csv", "cells_table", "cells", "table", "{stage}")},
        lambda wildcards: {"records": STAGES[wildcards.stage].records()},
        lambda files: ["tabulate", "cells", *files["records"]],
        lambda wildcards: TABULATOR | STAGES[wildcards.stage].declarations,  # they derive the status of rows
        constraints={"stage": "|".join(map(re.escape, STAGES))},
    ),
    Made(
        "writeup",
        "write-up",
        # A digit before the word, so that this category comes first in Snakemake's report.
        {
            "made": WRITEUP,
            "page": shown(REPORT_PAGE, "page", "1 report", "page", "all"),
            "course": COURSE,
            "summary": SUMMARY,
            "figures": shown(
                directory(FIGURES), "figure", "2 figures", "{stage}", "{figure}", patterns=["{stage}/{figure}.svg"]
            ),
        },
        rendered,
        lambda files: ["pages", str(PAGE_REQUEST)],
        lambda _: PAGES_CODE,
        [*sources.data_files(PAGES_CODE), *NOTES, PAGE_REQUEST],
        lambda: (
            Path(REPORT_PAGE),
            Path(COURSE),
            Path(SUMMARY),
            *(REPORTS / image for page in (WRITEUP, COURSE) for image in shown_images(Path(page))),
        ),
        out=str(REPORTS),
    ),
]
for made in MADE:

    rule:
        name:
            made.name
        input:
            unpack(exit_on_error(made.inputs)),
        output:
            **made.outputs,
            recipe=made.recipe_path,
        log:
            made.log,
        wildcard_constraints:
            **made.constraints,
        localrule: True
        params:
            words=made.words,
            recipe=made.recipe,
            question=made.question,
        message:
            made.message
        shell:
            "python -m pipeline {params.words:q} >{log:q} 2>&1 && echo {params.recipe} >{output.recipe:q}"
