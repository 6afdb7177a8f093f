"""The cells of every stage, each measured by a process of its own. A stage needs no rule of its own."""

from pipeline.cells.disk import DISK_FULL
from pipeline.cells.stage import shares_host

# Snakemake evaluates what follows `shell:` when the job runs, the loop's variables being those of the last stage: what
# differs between stages must come by params. `:q` quotes each word for the shell: paths may hold anything.
# A cell that fails leaves a record that says so. In braces, so that the shell's own words on a signal go to the log.
# A full disk ends the run, for the cells that come after could leave no record either: on SIGTERM Snakemake, the parent
# of this shell, starts nothing more and waits for what is under way.
MEASURE = (
    "{{ python -m pipeline measure {params.cell:q} {params.options:q} --gpus {resources.gpu} --out {output.record:q}; }}"
    " >{log:q} 2>&1 || python -m pipeline failed $? {params.cell:q} {params.options:q} --out {output.record:q} --log {log:q}"
    " || {{ code=$?; [ $code != {DISK_FULL} ] || kill -TERM $PPID; exit $code; }}"
)


def changed_if_stale(stage):
    """Return an input function: a cell has no input, but for a newer one where its record is there and stale."""

    def inputs(wildcards):
        path = stage.record_pattern.format(**wildcards)
        NEEDED.append(Path(path))
        if why := stage.why_stale(wildcards, PRESENT):
            WHY_STALE[path] = why
            return [newer_input(Path(path))]
        return []

    return ending_the_run(inputs)


def threads(stage):
    """Return how many cores a cell takes: all, so that nothing runs beside it, unless it may share the host.

    A scheduler's profile says how many cores its jobs get.
    """
    shared = lambda wildcards: SCHEDULED or shares_host(stage.cell(wildcards), GPUS_PRESENT)
    return lambda wildcards: 1 if shared(wildcards) else workflow.cores


def resource(stage, name):
    """Return how much of one resource a cell asks for; None: it says nothing of it."""
    return lambda wildcards: stage.resources(wildcards).get(name)


for stage in WRITTEN if PLAN.measure else ():

    rule:
        name:
            f"measure_{stage.name}"
        input:
            changed_if_stale(stage),
        output:
            **({"files": directory(stage.files_pattern)} if stage.files_pattern else {}),
            record=stage.record_pattern,
        log:
            stage.log_pattern,
        priority: 1
        threads: threads(stage)
        resources:
            **{name: resource(stage, name) for name in stage.resource_names()},
        params:
            cell=stage.cell_words,
            options=stage.option_words,
        message:
            "{params.cell}"
        shell:
            MEASURE
