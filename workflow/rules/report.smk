"""The write-up: which cells were run how, and the sections under a first page."""


rule tabulate_cells:
    input:
        wanted(stage_records, by="results/{stage}/cells.csv"),
    output:
        report(
            "results/{stage}/cells.csv",
            caption="../report/cells_table.rst",
            category="cells",
            labels={"kind": "table", "of": "{stage}"},
        ),
    log:
        "logs/{stage}/cells.csv.log",
    wildcard_constraints:
        stage=one_of(STAGES),
    message:
        "table of the cells of {wildcards.stage}"
    shell:
        "python -m pipeline tabulate cells {input:q} --out {output:q} >{log:q} 2>&1"


rule writeup:
    input:
        tables=wanted(TABLES, by=WRITEUP),
        cells=wanted(CELL_TABLES, by=WRITEUP),
        sections=wanted(SECTIONS, by=WRITEUP),
        figures=wanted(FIGURES, by=WRITEUP),
        failures=FAILURES_FILE or [],
    output:
        report(WRITEUP, caption="../report/writeup.rst", category="write-up"),
    log:
        "logs/writeup.log",
    params:
        scale=["--scale", PLAN.scale] if PLAN.measure else [],
        measured_by=[word for name in STAGES_TO_WRITE for word in ("--code", name, STAGES[name].code)],
        failures=["--failures", FAILURES_FILE] if FAILURES_FILE else [],
        code=freshness.code_digest("pipeline.report.writeup"),
        template=freshness.file_digest(ROOT / "src/pipeline/report/writeup.md.j2"),
    message:
        "write-up"
    shell:
        "python -m pipeline writeup {input.sections:q} --cells {input.cells:q} {params.scale:q}"
        " {params.measured_by:q} {params.failures:q} --out {output:q} >{log:q} 2>&1"
