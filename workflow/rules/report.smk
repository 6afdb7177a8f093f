"""The write-up: which cells were run how, and the sections under a first page."""

from pipeline.cells.config import config_words


rule tabulate_cells:
    input:
        unpack(CELL_TABLE.inputs),
    output:
        table=report(
            CELL_TABLE.path,
            caption="../report/cells_table.rst",
            category="cells",
            labels={"kind": "table", "of": "{stage}"},
        ),
        recipe=CELL_TABLE.recipe_path,
    log:
        "logs/{stage}/cells.csv.log",
    wildcard_constraints:
        stage=one_of(STAGES),
    localrule: True
    params:
        recipe=CELL_TABLE.recipe,
    message:
        "table of the cells of {wildcards.stage}"
    shell:
        "python -m pipeline tabulate cells {input:q} --out {output.table:q} >{log:q} 2>&1"
        " && echo {params.recipe} >{output.recipe:q}"


SCALE_WORDS = ["--scale", PLAN.scale, "--config", *config_words(config, PLAN)] if PLAN.measure else []
OUTDATED_WORDS = ["--outdated", *digests] if (digests := or_exit("snakemake", outdated)) else []
WRITEUP_CODE = sources.reached_modules("pipeline.report.writeup", "pipeline.report.html.report_page")
WRITEUP_MADE = Made(
    WRITEUP,
    {"tables": TABLES, "cells": CELL_TABLES, "sections": SECTIONS, "figures": FIGURES},
    WRITEUP_CODE,
    sources.data_files(WRITEUP_CODE),
    [*SCALE_WORDS, *OUTDATED_WORDS],
    beside=lambda: (REPORT_PAGE, SUMMARY),
)


rule writeup:
    input:
        unpack(WRITEUP_MADE.inputs),
    output:
        writeup=WRITEUP,
        # A figure before the word, so that it is the first of the report's categories.
        page=report(
            REPORT_PAGE, caption="../report/page.rst", category="1 report", labels={"kind": "page", "of": "all"}
        ),
        summary=SUMMARY,
        recipe=WRITEUP_MADE.recipe_path,
    log:
        "logs/writeup.log",
    localrule: True
    params:
        scale=SCALE_WORDS,
        outdated=OUTDATED_WORDS,
        recipe=WRITEUP_MADE.recipe,
    message:
        "write-up"
    shell:
        "python -m pipeline writeup {input.sections:q} --cells {input.cells:q} {params.scale:q}"
        " {params.outdated:q} --out {output.writeup:q} --html {output.page:q}"
        " --summary {output.summary:q} >{log:q} 2>&1"
        " && echo {params.recipe} >{output.recipe:q}"


# Not part of the write-up: asked for by name.
BASELINES_MADE = Made(
    "reports/baselines.md",
    {"records": [record for name in STAGES_TO_WRITE for record in STAGES[name].records()]},
    sources.reached_modules(
        "pipeline.report.baselines", *(f"{stages()[name].package}.report.baselines" for name in stages())
    ),
    sources.data_files(f"{stages()[name].package}.report.baselines" for name in stages()),
)


rule baselines:
    input:
        unpack(BASELINES_MADE.inputs),
    output:
        page=BASELINES_MADE.path,
        recipe=BASELINES_MADE.recipe_path,
        figures=directory("reports/figures/baselines"),
    log:
        "logs/baselines.log",
    localrule: True
    params:
        recipe=BASELINES_MADE.recipe,
    message:
        "others' figures"
    shell:
        "python -m pipeline baselines {input.records:q} --out {output.page:q} --figures {output.figures:q} >{log:q} 2>&1"
        " && echo {params.recipe} >{output.recipe:q}"
