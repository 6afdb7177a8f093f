from pipeline.cells.made import Made


def recipe(data, code="pipeline.errors", inputs="ab", word="--scale"):
    made = Made("page", "", {"made": "page.md"}, lambda _: {"in": list(inputs)}, lambda _: [word], [code], [data])
    return made.recipe({})


def test_a_recipe_changes_with_code_data_inputs_and_words_but_not_with_their_place_or_order(tmp_path):
    here, there = tmp_path / "page.j2", tmp_path / "moved/page.j2"
    there.parent.mkdir()
    for path in (here, there):
        path.write_text("text")
    assert recipe(here) == recipe(there, inputs="ba")
    there.write_text("other text")
    others = recipe(there), recipe(here, code="pipeline.peers"), recipe(here, inputs="a"), recipe(here, word="--only")
    assert len({recipe(here), *others}) == 5
