import pytest

from pipeline.errors import UserError, or_exit


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("size must be one of tiny", "size must be one of tiny"),
        ("two\nlines\r\nand\ttabs", r"two\nlines\r\nand\ttabs"),
        ("clears \x1b[2J the screen", r"clears \x1b[2J the screen"),
        ("turns \u202e around", r"turns \u202e around"),
        ("no UTF-8: \udcff", r"no UTF-8: \udcff"),
    ],
)
def test_a_message_is_one_line_that_a_terminal_shows_as_it_is(message, shown):
    assert str(UserError(message)) == shown
    assert str(UserError(str(UserError(message)))) == shown


def test_input_that_cannot_be_used_ends_the_process_with_one_line(capsys):
    def refuse(name):
        raise UserError(f"{name} is no stage")

    with pytest.raises(SystemExit) as ended:
        or_exit("snakemake", refuse, "a\nb")
    assert ended.value.code == 1
    assert capsys.readouterr().err == "snakemake: a\\nb is no stage\n"
