"""Rules that measure the cells of every stage, each cell in its own process; a new stage needs no change here."""

from pipeline.cells.disk import DISK_FULL
from pipeline.cells.stage import shares_host

# Snakemake evaluates what follows `shell:` when the job runs; the loop's variables are then those of the last stage, so
# what differs between stages must be in params. `:q` quotes each word for the shell, because paths may hold anything.
# A cell that fails leaves a record that says so. The braces send the shell's own messages about signals to the log.
# A full disk ends the run, because later cells could not leave a record either: on SIGTERM, Snakemake, the parent of
# this shell, starts no more jobs and waits for those that are running.
MEASURE = (
    "{{ python -m pipeline measure {params.cell:q} {params.options:q} --gpus {resources.gpu} --out {output.record:q}; }}"
    " >{log:q} 2>&1 || python -m pipeline failed $? {params.cell:q} {params.options:q} --out {output.record:q} --log {log:q}"
    " || {{ code=$?; [ $code != {DISK_FULL} ] || kill -TERM $PPID; exit $code; }}"
)


def changed_if_stale(stage):
    """Return an input function: a cell has no input, except a newer file if its record is stale."""

    def inputs(wildcards):
        path = stage.record_pattern.format(**wildcards)
        NEEDED.append(Path(path))
        if why := stage.why_stale(wildcards, PRESENT):
            WHY_STALE[path] = why
            return [newer_input(Path(path))]
        return []

    return exit_on_error(inputs)


def threads(stage):
    """Return how many cores a cell takes: all, so that nothing runs beside it, unless it may share the host.

    A scheduler's profile says how many cores its jobs get.
    """
    shared = lambda wildcards: SCHEDULED or shares_host(stage.cell(wildcards), GPUS_PRESENT)
    return lambda wildcards: 1 if shared(wildcards) else workflow.cores


def resource(stage, name):
    """Return how much of one resource a cell requests; None if it does not say."""
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
