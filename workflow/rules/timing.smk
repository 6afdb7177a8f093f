"""The stage `timing`: how fast each model size trains."""

TIMING = STAGES["timing"]


if PLAN.measure:

    rule measure_timing:
        output:
            TIMING.record_pattern,
        log:
            TIMING.log_pattern,
        priority: 1
        threads: CELL_THREADS
        resources:
            gpu=TIMING.gpus,
        params:
            cell=TIMING.cell_words,
            settings=TIMING.settings_words,
            code=TIMING.code,
            software=SOFTWARE,
            gpus_to_have=TIMING.gpus_to_have,
        message:
            "timing {params.cell}"
        shell:
            "python -m pipeline measure timing {params.cell} {params.settings}"
            " --gpus {resources.gpu} --out {output} >{log} 2>&1"


rule tabulate_timing:
    input:
        TIMING.records_of,
    output:
        report(
            "results/timing/{precision}.csv",
            caption="../report/timing_table.rst",
            category="timing",
            labels={"kind": "table", "of": "{precision}"},
        ),
    log:
        "logs/timing/{precision}.csv.log",
    wildcard_constraints:
        precision="|".join(TIMING.split_values()),
    message:
        "timing table {wildcards.precision}"
    shell:
        "python -m pipeline tabulate rows {input} --out {output} >{log} 2>&1"


rule section_timing:
    input:
        TIMING.tables(),
    output:
        section="reports/sections/timing.md",
        figures=report(
            directory("reports/figures/timing"),
            patterns=["{figure}.svg"],
            caption="../report/timing_figure.rst",
            category="timing",
            labels={"kind": "figure", "of": "{figure}"},
        ),
    log:
        "logs/timing/section.log",
    params:
        code=TIMING.report_code,
        template=TIMING.template,
    message:
        "section timing"
    shell:
        "python -m pipeline section timing {input} --out {output.section}" " --figures {output.figures} >{log} 2>&1"
