import jinja2
import numpy as np
import pandas as pd
import pytest

from pipeline.report import section
from pipeline.report.markup import Markdown


@pytest.fixture
def render(tmp_path):
    def render(template, **facts):
        path = tmp_path / "section.md.j2"
        path.write_text(template)
        return section.render(path, facts)

    return render


def test_numbers_have_their_units():
    assert [section.ms(12.345), section.ms(3456.7), section.ms(0.0456)] == ["12.3 ms", "3.46 s", "45.6 µs"]
    assert [section.ratio(1.4142), section.percent(0.1234), section.count(12345.0)] == ["1.41×", "12%", "12,345"]
    assert [section.data_size(size) for size in (2500, 999e6, 68.17e9)] == ["2.50 kB", "999 MB", "68.2 GB"]
    assert section.mib(5 * 2**20) == "5.00 MiB"


def test_a_missing_fact_stops_the_section(render):
    with pytest.raises(jinja2.UndefinedError):
        render("{{ nowhere }}")


@pytest.mark.parametrize("form", ["ms", "ratio", "percent", "count", "number", "data_size", "mib"])
def test_a_figure_that_is_not_a_number_stops_the_section(form):
    with pytest.raises(ValueError, match="no place in a sentence"):
        getattr(section, form)(np.nan)


def test_sentences_left_out_leave_no_gap(render):
    assert render("one\n\n{% if no %}\ntwo\n{% endif %}\n\nthree", no=False) == "one\n\nthree\n"


def test_a_span_names_its_lowest_and_highest():
    values = pd.Series({"small": 12.3, "large": 4.0, "xl": 456.0})
    assert section.span(values, section.ms) == "4.00 ms (large) to 456 ms (xl)"
    assert section.span(values[:1], section.ms) == "12.3 ms (small)"
    assert section.span(pd.Series({"small": 1.0001, "xl": 1.0002}), section.ratio) == "1.00×"


@pytest.mark.parametrize(("names", "text"), [(["a"], "a"), (["a", "b"], "a and b"), ([1, 2, 3], "1, 2 and 3")])
def test_a_listing_ends_in_and(names, text):
    assert section.listing(names) == text


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_is_found(exponent):
    x = np.array([128, 256, 512, 1024])
    assert section.growth_exponent(x, 3 * x**exponent) == pytest.approx(exponent)


def test_one_thing_is_written_without_the_plural(render):
    text = render('{{ 1 | counted("row") }}, {{ 0 | counted("row") }}, {{ 1200 | counted("warm-up step") }}')
    assert text == "1 row, 0 rows, 1,200 warm-up steps\n"


def test_facts_are_escaped_and_what_is_markdown_is_not(render):
    bold = "{% macro bold(name) %}**{{ name }}**{% endmacro %}"
    text = render(
        bold + "{{ bold(a) }}, {{ a }}, {{ [a, a] | listing }}, {{ a | code }}, {{ b }}", a="|", b=Markdown("*z*")
    )
    assert text == "**&#124;**, &#124;, &#124; and &#124;, &#124;, *z*\n"


def test_a_list_of_markdown_stays_markdown(render):
    assert render('{{ names | map("code") | listing }}', names=["a", "b<c>", "d"]) == "`a`, `b<c>` and `d`\n"
