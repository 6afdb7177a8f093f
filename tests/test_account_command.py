import pytest

from pipeline import cli
from pipeline.account_command import answers
from pipeline.stages.accounting.cell import QUESTIONS

from .complaints import complaint


def value(text, name, column):
    """Read a cell of the table with this column: of the first line that begins with a name."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    head = next(line for line in lines if column in line)
    return next(line for line in lines[lines.index(head) :] if line[0].startswith(name))[head.index(column)]


def test_without_words_it_answers_the_assignments_model():
    text = answers([], {})
    assert "219,848,638,464 parameters" in text
    assert [value(text, "state", column) for column in ("size", "GiB")] == ["3.52 TB", "3,276"]
    assert [value(text, "given", f"tokens {of}") for of in ("per device", "overall")] == ["396", "25,344"]


def test_all_questions_are_those_that_the_model_admits():
    def asked(given):
        return [line[4:] for line in answers([], given).splitlines() if line.startswith("### ")]

    assert asked({}) == ["memory", "fsdp", "mesh", "buckets", "ring", "parallel"]
    assert asked({"size": "xl"}) == list(QUESTIONS)
    assert "mesh" not in asked({"size": "one_head"})


def test_given_numbers_replace_those_of_the_named_model_and_machine_options_reach_their_question():
    text = answers(["memory"], {"size": "xl", "d_ff": "3200"})
    assert "48 layers of 25 heads, d_model 1,600, d_ff 3,200" in text
    assert value(answers(["memory"], {"gpu_memory_gb": "40"}), "total", "GPUs of GB") == "90"
    assert value(answers(["fsdp"], {"device_memory_gb": "192"}), "4,096", "devices") == "23"
    assert value(answers(["fsdp"], {"seq_len": "100000"}), "100,000", "devices") == "none is enough"
    cheap, dear = (answers(["buckets"], {"call_overhead_us": overhead}) for overhead in ("20", "80"))
    counts = [float(value(text, "best", "num buckets")) for text in (cheap, dear)]
    assert counts[0] == pytest.approx(2 * counts[1], rel=0.01)


@pytest.mark.parametrize(
    ("asked", "given", "said"),
    [
        (["memry"], {}, "unknown question 'memry': must be one of memory, fsdp"),
        ([], {"d_model": "-3"}, "d_model must be at least 1, got -3"),
        ([], {"size": "huge"}, "size must be one of XXL, one_head"),
        ([], {"peak_tflops_per_s": "fast"}, "peak_tflops_per_s must be a value of type float, got 'fast'"),
        (["attention"], {}, "attention needs attention, which this model lacks"),
        ([], {"num_heads": "7"}, "num_heads must divide d_model 16384, got 7"),
    ],
)
def test_bad_input_is_one_line(asked, given, said):
    assert said in complaint(answers, asked, given)


def test_the_command_reads_its_options(capsys):
    words = ["account", "memory", "--d-model", "1000", "--d-ff", "1000", "--num-blocks", "5"]
    assert cli.run(words, "ordinary", 0.0) == 0
    told = capsys.readouterr().out
    assert "10,000,000 parameters" in told
    assert value(told, "state", "size") == "160 MB"


@pytest.mark.parametrize(
    "name", ["peak-tflops-per-s", "link-gbytes-per-s", "allreduce-gbytes-per-s", "call-overhead-us"]
)
def test_a_machine_beyond_the_range_of_floats_is_one_line_that_names_the_option(capsys, name):
    assert cli.run(["account", "--size", "XXL", "--seq-len", "4096", f"--{name}", "1e308"], "ordinary", 0.0) == 2
    said = f"{name.replace('-', '_')} must be smaller, got 1e308: a result does not fit a float"
    assert capsys.readouterr() == ("", f"pipeline: account: {said}\n")
