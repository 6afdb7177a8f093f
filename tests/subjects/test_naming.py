import shutil

import pytest
import yaml

from pipeline.subjects.naming import ADAPTERS, KINDS, Subject, facts, read, words

from ..complaints import complaint
from .outside_files import ADAPTERS as FILE
from .outside_files import OUTSIDE

PLACE = f"{OUTSIDE}/kernels/attention.py:Right"


def test_the_subjects_option_is_read_back_as_the_same_subjects():
    subjects = read(FILE, "subjects", {})
    option, text = words(subjects)
    assert option == "--subjects"
    assert read(yaml.safe_load(text), "--subjects", {}) == subjects
    assert words(()) == []


def test_an_adapters_file_gives_a_subject_for_each_adapter_it_defines():
    subjects = {subject.name: subject for subject in read(FILE, "subjects", {})}
    assert set(subjects) == {name for _, name in ADAPTERS} - {"my_ddp"}
    assert subjects["my_pytorch"].use == f"{FILE}:get_flashattention_autograd_function_pytorch"
    assert subjects["my_ddp_bucketed"].before_batch == f"{FILE}:ddp_bucketed_on_train_batch_start"
    assert subjects["my_fsdp"].gather == f"{FILE}:fsdp_gather_full_params"
    assert {subject.kind for subject in subjects.values()} < set(KINDS)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["attention"], "subjects must be a mapping of kinds or the path of a file of adapters, got ['attention']"),
        ({"atention": {}}, "subjects: unknown kind 'atention': must be one of attention, ddp, fsdp, optimizer, model"),
        ({"attention": PLACE}, f"attention must be a mapping of names to places, such as {{mine: {PLACE}}}, got"),
        ({"attention": {"My-Flash": PLACE}}, "subjects: attention.My-Flash: a name must be text of at most 32 of"),
        ({"attention": {"mine:my:f": None}}, "of at most 32 of a-z, 0-9 and _; is there no space after its colon?"),
        ({"attention": {"a" * 33: PLACE}}, "a name must be text of at most 32 of a-z, 0-9 and _"),
        ({"attention": {False: PLACE}}, "0-9 and _; YAML reads on, off, yes and no as true and false: quote it"),
        ({"attention": {"triton": PLACE}}, "subjects: attention.triton: the pipeline's own has this name; taken are"),
        ({"attention": {"mine": 3}}, "attention.mine.use must be module:attribute or file.py:attribute, got 3"),
        ({"attention": {"mine": {}}}, "subjects: attention.mine has no use: name the implementation as"),
        ({"attention": {"mine": {"use": PLACE, "gather": PLACE}}}, "mine: unknown key 'gather': must be one of use"),
        ({"attention": {"mine": "Right"}}, "subjects: attention.mine: 'Right' must be module:attribute or"),
        ({"attention": {"mine": "no.such:Right"}}, "subjects: attention.mine: there is no Python module no.such in"),
        ({"attention": {"mine": "no.py:Right"}}, "subjects: attention.mine: there is no file"),
        ({"attention": {"mine": f"{FILE}:wrong"}}, "does not define 'wrong'; it defines get_flashattention_aut"),
        ("adapters", "a file of adapters, got 'adapters'"),
        (f"{OUTSIDE}/training.py", "training.py has none of the course's adapters, which are get_flashattention"),
    ],
)
def test_bad_input_is_reported_in_one_line(asked, said):
    assert said in complaint(read, asked, "subjects", {"attention": ["triton"]}).replace("a .py file", "a file")


def test_a_digest_does_not_depend_on_where_the_project_is(tmp_path):
    shutil.copytree(OUTSIDE, tmp_path / "elsewhere")

    def digest(place):
        return facts([Subject("attention", "mine", place)])[0]["digest"]

    there = digest(f"{tmp_path}/elsewhere/kernels/attention.py:Right")
    assert digest(PLACE) == there != digest(f"{OUTSIDE}/kernels/state.py:with_a_state_of_its_own")
