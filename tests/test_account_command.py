import pytest

from pipeline import cli
from pipeline.account_command import answers
from pipeline.stages.accounting.cell import QUESTIONS

from .complaints import complaint


def value(text, name, column):
    """Return the value in a column of the first table that has it, from the first line that begins with `name`."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    head = next(line for line in lines if column in line)
    return next(line for line in lines[lines.index(head) :] if line[0].startswith(name))[head.index(column)]


def test_without_arguments_it_answers_for_the_assignments_model():
    text = answers([], {})
    assert "219,848,638,464 parameters" in text
    assert "&#" not in answers([], {"size": "xl"})
    assert [value(text, "state", column) for column in ("size", "GiB")] == ["3.52 TB", "3,276"]
    assert [value(text, "given", f"tokens {of}") for of in ("per device", "overall")] == ["396", "25,344"]


def test_all_questions_are_those_that_apply_to_the_model():
    def answered_questions(given):
        return [line[4:] for line in answers([], given).splitlines() if line.startswith("### ")]

    assert answered_questions({}) == ["memory", "fsdp", "mesh", "buckets", "ring", "parallel"]
    assert answered_questions({"size": "xl"}) == list(QUESTIONS)
    assert "mesh" not in answered_questions({"size": "one_head"})


def test_options_override_the_named_model_and_reach_their_question():
    text = answers(["memory"], {"size": "xl", "d_ff": "3200"})
    assert "48 layers of 25 heads, d_model 1,600, d_ff 3,200" in text
    assert value(answers(["memory"], {"gpu_memory_gb": "40"}), "total", "GPUs of GB") == "90"
    assert value(answers(["fsdp"], {"device_memory_gb": "192"}), "4,096", "devices") == "23"
    assert value(answers(["fsdp"], {"seq_len": "100000"}), "100,000", "devices") == "none is enough"
    low_overhead, high_overhead = (answers(["buckets"], {"call_overhead_us": overhead}) for overhead in ("20", "80"))
    counts = [float(value(text, "best", "num buckets")) for text in (low_overhead, high_overhead)]
    assert counts[0] == pytest.approx(2 * counts[1], rel=0.01)


@pytest.mark.parametrize(
    ("questions", "given", "message"),
    [
        (["memry"], {}, "unknown question 'memry': must be one of memory, fsdp"),
        ([], {"d_model": "-3"}, "d_model must be at least 1, got -3"),
        ([], {"size": "huge"}, "size must be one of XXL, one_head"),
        ([], {"peak_tflops_per_s": "fast"}, "peak_tflops_per_s must be a finite number, got 'fast'"),
        (["attention"], {}, "attention needs attention, which this model lacks"),
        ([], {"num_heads": "7"}, "num_heads must divide d_model 16384, got 7"),
    ],
)
def test_bad_input_is_one_line(questions, given, message):
    assert message in complaint(answers, questions, given)


def test_the_command_reads_its_options(capsys):
    words = ["account", "memory", "--d-model", "1000", "--d-ff", "1000", "--num-blocks", "5"]
    assert cli.run(words, "ordinary", 0.0) == 0
    output = capsys.readouterr().out
    assert "10,000,000 parameters" in output
    assert value(output, "state", "size") == "160 MB"


@pytest.mark.parametrize(
    "name", ["peak-tflops-per-s", "link-gbytes-per-s", "allreduce-gbytes-per-s", "call-overhead-us"]
)
def test_an_option_that_overflows_floats_is_named_in_one_line(capsys, name):
    assert cli.run(["account", "--size", "XXL", "--seq-len", "4096", f"--{name}", "1e308"], "ordinary", 0.0) == 2
    message = f"{name.replace('-', '_')} must be smaller, got 1e308: a result overflows a float"
    assert capsys.readouterr() == ("", f"pipeline: account: {message}\n")
