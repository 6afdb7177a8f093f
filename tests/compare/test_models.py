import pytest

from pipeline.compare.judge import compare_runs
from pipeline.compare.models import models_of_both, models_table
from pipeline.compare.page import comparison_page
from pipeline.compare.text import write_comparison
from pipeline.registry import stage, stages
from pipeline.report.section_rows import section_rows
from pipeline.report.tables import MAX_COLUMNS

from ..records import CPU, as_read, failed_row, record, timed_row

H200, H100 = "NVIDIA H200", "NVIDIA H100"
SETTINGS = {"vocab_size": 10_000}


def step(size, ms, context_length=1024, machine=H200, **columns):
    """Return the record of an eager step of 4 sequences, which peaks at 1 GB for each of its ms."""
    tokens_per_s = 4 * context_length / ms * 1e3
    figures = {"tokens_per_s": tokens_per_s, "peak_bytes": int(ms * 1e9), **columns}
    row = as_read(timed_row("train_step", [ms] * 10)) | figures
    return out_of(size, row, context_length, machine)


def out_of(size, row, context_length=1024, machine=H200):
    cell = {"precision": "bf16", "size": size, "context_length": context_length}
    facts = CPU | {"kind": machine, "os": "an OS", "threads": 2, "gpus": [{}]}
    return record(cell=cell, rows=[row], settings=SETTINGS, machine=facts)


def lever(size, ms, levers="fused+graph", context_length=1024):
    """Return the record of a step with these optimizations."""
    made = step(size, ms, context_length)
    cell = {"size": size, "context_length": context_length}
    row = {name: value for name, value in made["rows"][0].items() if name not in ("phase", "clock")}
    rows, settings = [{"levers": levers, **row}], SETTINGS | {"batch_size": 4}
    return {**made, "stage": "levers", "cell": cell, "rows": rows, "settings": settings}


def of_both(a, b):
    return models_of_both(a, b, stages())


def cells_of(a, b, machines=(H200, H100)):
    lines = [line for line in models_table(of_both(a, b), machines).splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return head, rows


def test_both_machines_stand_beside_each_other_under_their_names():
    a = [step("small", 20.0), step("large", 40.0), lever("large", 10.0)]
    b = [step("small", 10.0), step("large", 80.0), lever("large", 8.0)]
    head, rows = cells_of(a, b)
    tokens = [f"tokens/s {H200}", f"tokens/s {H100}", "×"]
    assert head == ["model", *tokens, f"tuned {H200}", f"tuned {H100}", "tuned ×", "peak GB"]
    assert len(head) <= MAX_COLUMNS
    assert rows == [
        ["small", "204,800", "409,600", "2.00×", "–", "–", "–", "20.0 and 10.0"],
        ["large", "102,400", "51,200", "0.500×", "409,600", "512,000", "1.25×", "40.0 and 80.0"],
    ]


def test_two_runs_of_one_machine_are_a_and_b_and_what_no_run_has_is_left_out():
    head, rows = cells_of([step("small", 20.0)], [step("small", 20.0)], (H200, H200))
    assert head == ["model", "tokens/s A", "tokens/s B", "×", "peak GB"]
    assert rows == [["small", "204,800", "204,800", "1.00×", "20.0"]]
    on_cpu = [step("small", 20.0, peak_bytes=None)]
    assert cells_of(on_cpu, on_cpu, (H200, H200))[0] == head[:-1]


def test_the_figures_are_those_of_the_first_screen():
    records = [step("small", 20.0), step("large", 40.0), lever("large", 10.0), step("large", 30.0, 512)]
    by_stage = {name: [each for each in records if each["stage"] == name] for name in ("timing", "levers")}
    timing = stage("timing")
    screen = timing.models()(*section_rows(timing, stages(), by_stage))
    both = of_both(records, records)
    for name in ("size", "context_length", "tokens_per_s", "tuned_tokens_per_s", "peak_bytes"):
        told = both[name if name in both else f"{name}_b"].astype(object)
        assert [*told.where(told.notna(), None)] == [model[name] for model in screen]


def test_a_model_for_which_one_machine_lacks_memory_is_out_of_memory_there():
    a = [step(size, 40.0, context) for size in ("small", "xl") for context in (512, 1024)]
    b = [step("small", 40.0), *(step(size, 40.0, 512) for size in ("small", "xl"))]
    b.append(out_of("xl", failed_row("oom", phase="train_step")))
    for runs, column in (((a, b), 2), ((b, a), 1)):
        _, rows = cells_of(*runs)
        assert [row[0] for row in rows] == ["small", "xl"]
        assert rows[1][column : column + 1] == ["OOM"]
        assert rows[1][3] == "–"
    assert set(of_both(a, b)["context_length"]) == {1024}


def test_runs_at_different_contexts_are_compared_at_one_that_both_have():
    a, b = [step("small", 40.0), step("small", 20.0, 512)], [step("small", 30.0, 512)]
    for runs in ((a, b), (b, a)):
        assert list(of_both(*runs)["context_length"]) == [512]
    assert of_both(a[:1], b).empty


def test_an_unstable_step_and_a_model_of_one_run_are_marked():
    a = [step("small", 20.0, status="unstable"), step("large", 40.0)]
    _, rows = cells_of(a, [step("small", 20.0)])
    assert rows[0][1:3] == ["204,800 (unstable)", "204,800"]
    assert rows[1][1:4] == ["102,400", "–", "–"]


@pytest.mark.parametrize(
    "other",
    [
        [out_of("small", failed_row("oom", phase="train_step"))],
        [out_of("small", timed_row("train_step", [20.0] * 10))],
        [step("large", 20.0)],
    ],
)
def test_without_a_step_in_both_the_runs_have_no_model_in_common(other):
    runs = [step("small", 20.0)], other
    for a, b in (runs, runs[::-1]):
        assert of_both(a, b).empty
        text = write_comparison(compare_runs(a, b, stages(), 0.05), "a", "b")
        assert "no model in common at the same precision, context and batch" in text
        assert "first screen" not in text


def test_of_a_run_that_timed_no_steps_nothing_is_said_of_models():
    comparison = compare_runs([step("small", 20.0)], [lever("small", 10.0)], stages(), 0.05)
    assert "model" not in write_comparison(comparison, "a", "b").split("###")[0]


def test_text_and_page_begin_with_the_table():
    b = [step("small", 25.0, machine=H100)]
    comparison = compare_runs([step("small", 20.0)], b, stages(), 0.05)
    text, page = write_comparison(comparison, "a", "b"), comparison_page(comparison, "a", "b")
    assert text.startswith(f"A: a, {H200}\nB: b, {H100}\n\nTraining steps as on a report's first screen: bf16, ")
    assert text.index("0.800×") < text.index("### What differs")
    assert f"<title>{H200} and {H100} compared" in page
    assert page.index(f">tokens/s {H100}</th>") < page.index("0.800×") < page.index("median time in both")
