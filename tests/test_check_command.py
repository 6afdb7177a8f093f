import pytest

from pipeline import cli
from pipeline.subjects import verdicts
from pipeline.subjects.attention_check import IGNORES_MASK
from pipeline.subjects.checking import Verdict

from .subjects.outside_files import OUTSIDE

KERNELS = f"{OUTSIDE}/kernels/attention.py"
BOTH = f"{{attention: {{mine: '{KERNELS}:Right', other: '{KERNELS}:without_mask'}}}}"


def checked(monkeypatch, words, **found):
    monkeypatch.setattr(verdicts, "verdict_on", lambda subject, _timeout_s: found[subject.name])
    with pytest.raises(SystemExit) as end:
        cli.main(["check", *words])
    return end.value.code


def test_each_implementation_has_a_line_and_a_wrong_one_fails_the_command(monkeypatch, capsys):
    wrong = Verdict("wrong", "in fp32 output is off by 2")
    # The word may be copied from a --config option.
    assert checked(monkeypatch, [f"subjects={BOTH}"], mine=Verdict("ok"), other=wrong) == 1
    assert capsys.readouterr().out == "attention mine: right\nattention other: wrong, in fp32 output is off by 2\n"


def test_without_wrong_ones_the_command_fails_only_if_none_is_right(monkeypatch, capsys):
    limited = Verdict("ok", "in fp32", limits=("bf16: wrong, off by 2", "lengths like 113: skipped, refused"))
    found = {"mine": limited, "other": Verdict("oom", "too much")}
    assert checked(monkeypatch, [BOTH], **found) == 0
    assert capsys.readouterr().out.splitlines() == [
        "attention mine: right in fp32",
        "    bf16: wrong, off by 2",
        "    lengths like 113: skipped, refused",
        "attention other: oom, too much",
    ]
    found |= {"mine": Verdict("skipped", "cannot be imported: ImportError")}
    assert checked(monkeypatch, [BOTH], **found) == 1


def test_attention_that_ignores_the_mask_fails_the_command_and_the_first_line_says_so(monkeypatch, capsys):
    limit = f"fp32 causal: wrong, output is off by 2; {IGNORES_MASK}"
    found = {"mine": Verdict("ok"), "other": Verdict("ok", "in fp32 without a mask", limits=(limit,))}
    assert checked(monkeypatch, [BOTH], **found) == 1
    line = "attention other: wrong with the causal mask; right in fp32 without a mask"
    assert capsys.readouterr().out.splitlines()[1:] == [line, f"    {limit}"]


def test_attention_that_ignores_the_mask_in_bf16_alone_does_not_fail_the_command(monkeypatch, capsys):
    limit = f"bf16: wrong, output is off by 2; {IGNORES_MASK}"
    found = {"mine": Verdict("ok"), "other": Verdict("ok", "in fp32 causal", limits=(limit,))}
    assert checked(monkeypatch, [BOTH], **found) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["attention other: right in fp32 causal", f"    {limit}"]


def test_a_right_implementation_with_a_note_is_right_but(monkeypatch, capsys):
    words = f"{{optimizer: {{mine: '{OUTSIDE}/training.py:not_sharded'}}}}"
    assert checked(monkeypatch, [words], mine=Verdict("ok", "nothing is sharded")) == 0
    assert capsys.readouterr().out == "optimizer mine: right, but nothing is sharded\n"


def test_for_an_adapter_file_it_lists_present_and_missing_functions(monkeypatch, capsys, tmp_path):
    file = tmp_path / "adapters.py"
    file.write_text("def get_rmsnorm_autograd_function_triton(): ...\ndef get_ddp_bucketed(module, mb): ...\n")
    assert checked(monkeypatch, [str(file)], my_ddp_bucketed=Verdict("ok")) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    present, _, absent = first.partition("; ")
    assert (present, "get_fsdp" in absent, "get_ddp_bucketed" in absent) == (
        f"{file} has get_ddp_bucketed",
        True,
        False,
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["{}"], "check: no implementation given"),
        (["{attention: {mine: 'no.py:Right'}}"], "check: attention.mine: there is no file"),
        ([BOTH, "--timeout-s", "0"], "check: --timeout-s must be above 0, got 0"),
        (["{attention"], "check: not valid YAML"),
        (["my.py:attend"], "check: name the kind, for instance '{attention: {mine: my.py:attend}}'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(monkeypatch, capsys, words, complaint):
    assert checked(monkeypatch, words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line
