"""What every stage has: its cells measured, its tables and its section. A stage needs no rule of its own."""

from pipeline.cells.disk import DISK_FULL
from pipeline.report.written_section import HTML_SUFFIX

# Snakemake evaluates what follows `shell:` when the job runs, the loop's variables being those of the last stage: what
# differs between stages must come by params. `:q` quotes each word for the shell: paths may hold anything.
# A cell that fails leaves a record that says so. In braces, so that the shell's own words on a signal go to the log.
# A full disk ends the run, for the cells that come after could leave no record either: on SIGTERM Snakemake, the parent
# of this shell, starts nothing more and waits for what is under way.
CELL = (
    "{params.stage:q} {params.cell:q} {params.settings:q} {params.subjects:q} --gpus {resources.gpu}"
    " --out {output.record:q} {params.files:q}"
)
MEASURE = (
    f"{{{{ python -m pipeline measure {CELL}; }}}} >{{log:q}} 2>&1"
    f" || python -m pipeline failed $? {CELL} --log {{log:q}}"
    " || {{ code=$?; [ $code != {DISK_FULL} ] || kill -TERM $PPID; exit $code; }}"
)


for name in STAGES_TO_WRITE:
    stage = STAGES[name]

    if PLAN.measure:

        rule:
            name:
                f"measure_{name}"
            input:
                stage.measured_again_if_stale,
            output:
                **stage.outputs(),
            log:
                stage.log_pattern,
            priority: 1
            threads: stage.threads
            resources:
                **stage.resources(),
            params:
                stage=name,
                cell=stage.cell_words,
                settings=stage.settings_words,
                subjects=stage.subjects_words,
                files=files_words,
            message:
                "{params.stage} {params.cell}"
            shell:
                MEASURE

    rule:
        name:
            f"tabulate_{name}"
        input:
            unpack(stage.table.inputs),
        output:
            table=report(
                stage.table_pattern,
                caption="../report/table.rst",
                category=name,
                labels={"kind": "table", "of": f"{{{stage.split_axis}}}"},
            ),
            recipe=stage.table.recipe_path,
        log:
            f"logs/{name}/{{{stage.split_axis}}}.csv.log",
        wildcard_constraints:
            **{stage.split_axis: stage.value_pattern()},
        localrule: True
        params:
            question=stage.question,
            recipe=stage.table.recipe,
        message:
            "table {output.table}"
        shell:
            "python -m pipeline tabulate rows {input:q} --out {output.table:q} >{log:q} 2>&1"
            " && echo {params.recipe} >{output.recipe:q}"

    section = stage.section()

    rule:
        name:
            f"section_{name}"
        input:
            unpack(section.inputs),
        output:
            section=section.path,
            parts=f"reports/sections/{name}.json",
            html_parts=f"reports/sections/{name}{HTML_SUFFIX}",
            recipe=section.recipe_path,
            figures=report(
                directory(f"reports/figures/{name}"),
                patterns=["{figure}.svg"],
                caption="../report/figure.rst",
                category=name,
                labels={"kind": "figure", "of": "{figure}"},
            ),
        log:
            f"logs/{name}/section.log",
        localrule: True
        params:
            stage=name,
            captions=figure_captions,
            question=stage.question,
            recipe=section.recipe,
        message:
            "section {params.stage}"
        shell:
            "python -m pipeline section {params.stage:q} {input:q}"
            " --out {output.section:q} --figures {output.figures:q} >{log:q} 2>&1"
            " && echo {params.recipe} >{output.recipe:q}"
