"""Tables and pages: of rows, of how cells were run, the sections under a first page, and a page of others' figures."""

import re

from pipeline.cells.config import config_words
from pipeline.report.captions import captions
from pipeline.report.publish import shown_images
from pipeline.report.written_section import HTML_SUFFIX

# And the rule by which times are unstable.
TABULATOR = sources.reached_modules("pipeline.cells.tabulate", "pipeline.cells.timed_rows")
SCALE_WORDS = ["--scale", PLAN.scale, "--config", *config_words(config, PLAN)] if PLAN.measure else []
OUTDATED_WORDS = ["--outdated", *digests] if (digests := or_exit("snakemake", outdated)) else []
WRITEUP_CODE = sources.reached_modules("pipeline.report.writeup", "pipeline.report.html.report_page")
BASELINES = [f"{stage.package}.report.baselines" for stage in stages().values()]


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
        TABULATOR | stage.declarations,
        constraints={stage.split_axis: stage.value_pattern()},
        question=stage.question,
    )


def section(stage):
    """Return a stage's section, made of its records and of those of stages that it reads too.

    Snakemake sees the folder of figures, not what is in it: the section is written again where one is gone.
    """
    package = f"{stage.package}.report"
    code = sources.reached_modules(f"{package}.section", f"{package}.charts", "pipeline.report.writeup")
    path, figures = f"{REPORTS}/sections/{stage.name}.md", f"{REPORTS}/figures/{stage.name}"
    # The parts show all figures, those of the first screen too.
    parts, html_parts = (Path(path).with_suffix(suffix) for suffix in (".json", HTML_SUFFIX))
    read = [STAGES[name] for name in (stage.name, *stage.declared.reads) if name in STAGES]
    drawn = shown(directory(figures), "figure", stage.name, "figure", "{figure}", patterns=["{figure}.svg"])
    return Made(
        f"section_{stage.name}",
        f"section {stage.name}",
        {"made": path, "parts": str(parts), "html_parts": str(html_parts), "figures": drawn},
        lambda wildcards: {"records": [record for each in read for record in each.records()]},
        lambda files: ["section", stage.name, *files["records"], "--figures", figures],
        code | stage.declarations,
        sources.data_files(name for name in code if name.startswith(package)),
        lambda: (parts, html_parts, *(REPORTS / image for image in shown_images(parts))),
        question=stage.question,
        captions=lambda wildcards: captions(parts),
    )


def rendered(wildcards):
    """Return what the write-up is made of; tables and figures are there because its pages link to them."""
    return {
        "sections": [f"{REPORTS}/sections/{stage.name}.md" for stage in WRITTEN],
        "cells": [f"{RESULTS}/{stage.name}/cells.csv" for stage in WRITTEN],
        "tables": [table for stage in WRITTEN for table in stage.tables()],
        "figures": [f"{REPORTS}/figures/{stage.name}" for stage in WRITTEN],
    }


MADE = [
    *map(tables, WRITTEN),
    Made(
        "tabulate_cells",
        "table {output.made}",
        {"made": shown("results/{stage}/cells.csv", "cells_table", "cells", "table", "{stage}")},
        lambda wildcards: {"records": STAGES[wildcards.stage].records()},
        lambda files: ["tabulate", "cells", *files["records"]],
        TABULATOR,
        constraints={"stage": "|".join(map(re.escape, STAGES))},
    ),
    *map(section, WRITTEN),
    Made(
        "writeup",
        "write-up",
        # A figure before the word, so that it is the first of the report's categories.
        {"made": WRITEUP, "page": shown(REPORT_PAGE, "page", "1 report", "page", "all"), "summary": SUMMARY},
        rendered,
        lambda files: [
            *("writeup", *files["sections"], "--cells", *files["cells"], *SCALE_WORDS, *OUTDATED_WORDS),
            *("--html", REPORT_PAGE, "--summary", SUMMARY),
        ],
        WRITEUP_CODE,
        sources.data_files(WRITEUP_CODE),
        lambda: (Path(REPORT_PAGE), Path(SUMMARY)),
    ),
    # Not part of the write-up: asked for by name.
    Made(
        "baselines",
        "others' figures",
        {"made": f"{REPORTS}/baselines.md", "figures": directory(f"{REPORTS}/figures/baselines")},
        lambda wildcards: {"records": [record for stage in WRITTEN for record in stage.records()]},
        lambda files: ["baselines", *files["records"], "--figures", f"{REPORTS}/figures/baselines"],
        sources.reached_modules("pipeline.report.baselines", *BASELINES),
        sources.data_files(BASELINES),
    ),
]
for made in MADE:

    rule:
        name:
            made.name
        input:
            unpack(ending_the_run(made.inputs)),
        output:
            **made.outputs,
            recipe=made.made_by,
        log:
            made.log,
        wildcard_constraints:
            **made.constraints,
        localrule: True
        params:
            words=made.words,
            recipe=made.recipe,
            question=made.question,
            captions=made.captions,
        message:
            made.message
        shell:
            "python -m pipeline {params.words:q} >{log:q} 2>&1 && echo {params.recipe} >{output.recipe:q}"
