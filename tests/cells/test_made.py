from pipeline.cells.made import Made


def recipe(*data, code="pipeline.errors", inputs="ab", word="--scale"):
    made = Made(
        "page", "", {"made": "page.md"}, lambda _: {"in": list(inputs)}, lambda _: [word], lambda _: [code], data
    )
    return made.recipe({})


def test_a_recipe_depends_on_code_data_inputs_and_words_not_on_place_or_order(tmp_path):
    here, other, there = tmp_path / "page.j2", tmp_path / "other.j2", tmp_path / "moved/page.j2"
    there.parent.mkdir()
    for path in (here, other, there):
        path.write_text("text")
    before = recipe(here, other)
    assert before == recipe(other, there, inputs="ba")
    there.write_text("other text")
    others = recipe(there, other), recipe(here, other, code="pipeline.peers"), recipe(here, other, inputs="a")
    assert len({before, *others, recipe(here, other, word="--only")}) == 5
