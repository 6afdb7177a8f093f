import html
import random
import re

import pytest

from pipeline.report.markup import Markdown, code, one_line, plain, unwrapped

HARMLESS = """\
train_step
CUDA out of memory; other processes held 12 GiB of the GPU
12.3 [11.9, 12.8]
1,183 ± 2,587 (unstable)
NVIDIA H200 (2 of 8), torch 2.13.0+cu130
-3.5%
–
n < 5 & m >= 2
2^10 × 3
size=xl precision=bf16
a: b; c/d: 'e', "f"!
, and """


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        *((line, line) for line in HARMLESS.split("\n")),
        ("<script>", "&#60;script>"),
        ("a|b [x](y)", "a&#124;b [x&#93;(y)"),
        ("__x__ a_b", "&#95;&#95;x&#95;&#95; a_b"),
        ("&lt; & &#60;", "&#38;lt; & &#38;#60;"),
        ("1. x", "&#49;&#46; x"),
        ("https://e.com", "https:\u200b//e.com"),
    ],
)
def test_possible_markup_is_escaped_and_other_text_is_unchanged(text, escaped):
    assert Markdown.escape(text) == escaped


@pytest.mark.parametrize(
    "text", [HARMLESS.split("\n")[0], "*a* aten::_softmax_ | `b` \\", "&#42; &lt; 1. https://e.com"]
)
def test_plain_text_is_what_was_escaped(text):
    assert plain(Markdown.escape(text)) == text


def test_plain_text_keeps_code_spans_and_drops_bold_and_hard_line_breaks():
    assert plain(Markdown("**a**:\\\nb") + code("x**2 &#42;")) == "a:\nb`x**2 &#42;`"


def test_joined_parts_are_escaped_once_unless_they_are_markdown():
    once = Markdown.escape("a|b")
    assert Markdown.escape(once) == once == Markdown("a&#124;b")
    assert Markdown("\n\n").join(["*a*", Markdown("*b*")]) == "&#42;a&#42;\n\n*b*"
    assert Markdown("**{}**: {}").format("a|b", Markdown("`c`")) == "**a&#124;b**: `c`"
    assert isinstance(Markdown("**") + "|", Markdown)


@pytest.mark.parametrize(
    ("write", "text", "line"),
    [
        (one_line, "one\ntwo\r\n three\tfour\u2028five", "one two three four five"),
        (one_line, "      code", " code"),
        (one_line, "break  ", "break "),
        (one_line, "\x00\x1b[2J\u202e\udcff", r"\x00\x1b[2J\u202e\udcff"),
        (one_line, "two  spaces", "two  spaces"),
        (code, "kernel<4, add<float>>", "`kernel<4, add<float>>`"),
        (code, "a\nb", "`a b`"),
        (code, "a`b", "a&#96;b"),
        (code, "a|b", "a&#124;b"),
        (code, " ", " "),
    ],
)
def test_text_becomes_one_visible_line_and_code_gets_backticks_if_it_can(write, text, line):
    assert write(text) == line


PIECES = [
    *'\\`*_{}[]()#+-.!|~$&<>@:=^"/;%0a1 é?',
    *("[x](http://e.com)", "<script>", "<!--", "-->", "www.e.com", "a@b.c", "&lt;", "&#60;", "[x]: y", "[^1]", "```"),
    *("---", "    ", "1. ", "# ", "> ", "- ", "</td>", "\n\n", "\t", "\x00", "\u202e", "\u2028", "\xa0", "://", "\\|"),
]


def test_escaped_random_text_has_no_character_that_markdown_interprets():
    chance = random.Random(0)
    for _ in range(3000):
        text = "".join(chance.choices(PIECES, k=chance.randint(1, 8)))
        escaped = Markdown.escape(text)
        # A reference in the text itself is shown literally, so unescaping once gives the text back.
        assert html.unescape(escaped).replace("\u200b", "") == one_line(text)
        anywhere = r"[\\`*|$~]|<[A-Za-z/!?]|<$|\](?=[(\[:])|\[\^|://|(?i:www)\.|@\w"
        assert not re.search(anywhere, escaped), (text, escaped)
        assert not re.match(r" *(\[|#|>|([-+=]+|\d+[.)])(\s|$))|    ", escaped), (text, escaped)
        assert escaped.isprintable() or "\u200b" in escaped


def test_a_paragraph_becomes_one_line_and_tables_lists_and_code_stay():
    text = "one\ntwo *three*\nfour\n\n### head\n\n- a\n- b\n\n| a |\n| - |\n\n    code\n    more\n\nend\n[[place]]"
    assert unwrapped(text) == text.replace("one\ntwo *three*\nfour", "one two *three* four")
