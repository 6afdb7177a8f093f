import pytest

from pipeline.errors import UserError


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
def test_a_message_is_one_line_of_printable_text(message, shown):
    assert str(UserError(message)) == shown
    assert str(UserError(str(UserError(message)))) == shown
