"""What every stage has: its cells measured, its tables and its section. A stage needs no rule of its own."""

# Snakemake evaluates what follows `shell:` when the job runs, the loop's variables being those of the last stage: what
# differs between stages must come by params. `:q` quotes each word for the shell: paths may hold anything.
# A full disk ends the run, for the cells that come after could leave no record either: on SIGTERM Snakemake, the parent
# of this shell, starts nothing more and waits for what is under way.
MEASURE = (
    "python -m pipeline measure {params.stage:q} {params.cell:q} {params.settings:q} --gpus {resources.gpu}"
    " --out {output.record:q} {params.files:q} >{log:q} 2>&1"
    " || {{ code=$?; if [ $code = {DISK_FULL} ]; then echo {DISK_IS_FULL:q} >&2; kill -TERM $PPID; fi; exit $code; }}"
)


for name in STAGES_TO_WRITE:
    stage = STAGES[name]

    if PLAN.measure and not FAILURES.failed:

        rule:
            name:
                f"measure_{name}"
            output:
                **stage.outputs(),
            log:
                stage.log_pattern,
            priority: 1
            threads: stage.threads
            resources:
                gpu=stage.gpus,
            params:
                stage=name,
                cell=stage.cell_words,
                settings=stage.settings_words,
                files=files_words,
                code=stage.code,
                software=SOFTWARE,
                gpus_to_have=stage.gpus_to_have,
            message:
                "{params.stage} {params.cell}"
            shell:
                MEASURE

    rule:
        name:
            f"tabulate_{name}"
        input:
            wanted(stage.records_of, by=stage.table_pattern),
        output:
            report(
                stage.table_pattern,
                caption="../report/table.rst",
                category=name,
                labels={"kind": "table", "of": f"{{{stage.split_axis}}}"},
            ),
        log:
            f"logs/{name}/{{{stage.split_axis}}}.csv.log",
        wildcard_constraints:
            **{stage.split_axis: one_of(stage.split_values())},
        params:
            question=stage.question,
        message:
            "table {output}"
        shell:
            "python -m pipeline tabulate rows {input:q} --out {output:q} >{log:q} 2>&1"

    rule:
        name:
            f"section_{name}"
        input:
            wanted_by_section(name),
        output:
            section=f"reports/sections/{name}.md",
            figures=report(
                directory(f"reports/figures/{name}"),
                patterns=["{figure}.svg"],
                caption="../report/figure.rst",
                category=name,
                labels={"kind": "figure", "of": "{figure}"},
            ),
        log:
            f"logs/{name}/section.log",
        params:
            stage=name,
            question=stage.question,
            code=stage.report_code,
            template=stage.template,
        message:
            "section {params.stage}"
        shell:
            "python -m pipeline section {params.stage:q} {input:q}"
            " --out {output.section:q} --figures {output.figures:q} >{log:q} 2>&1"
