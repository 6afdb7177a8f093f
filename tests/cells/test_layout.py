import json
from pathlib import Path

import pytest

from pipeline.cells import fields, layout
from pipeline.cells.disk import WholeFile
from pipeline.cells.record import write_record
from pipeline.errors import UserError
from pipeline.registry import stages
from pipeline.stages.timing.cell import Cell

from ..records import record

CELL = Cell(precision="bf16", size="2.7B", context_length=512)
PLACE = "precision=bf16/size=2.7B/context_length=512/batch_size=4/warmup_steps=5/repeat=1"


def cell_as_json(cell):
    return json.loads(json.dumps({axis: getattr(cell, axis) for axis in fields.texts(cell)}))


def test_a_record_lies_in_a_folder_for_each_axis(tmp_path):
    assert layout.record_path(tmp_path, "timing", CELL) == tmp_path / f"timing/cells/{PLACE}.json"


@pytest.mark.parametrize("stage", stages())
def test_the_pattern_of_a_stage_filled_with_a_cell_is_its_path(stage):
    cell = stages()[stage].cell_type()
    filled = layout.cell_pattern(type(cell)).format(**fields.texts(cell))
    assert layout.record_path(Path("results"), stage, cell) == Path(f"results/{stage}/cells/{filled}.json")


@pytest.mark.parametrize("cell", [CELL, Cell()])
def test_records_at_the_paths_of_their_cells_are_found(tmp_path, cell):
    path = layout.record_path(tmp_path, "timing", cell)
    write_record(WholeFile(path), record(cell=cell_as_json(cell)))
    assert layout.recorded_cells(tmp_path, stages()["timing"]) == {path: cell}
    assert layout.recorded_cells(tmp_path, stages()["flash"]) == {}


REST = "context_length=512/batch_size=4/warmup_steps=5/repeat=1"
SIZE = f"size=tiny/{REST}"


@pytest.mark.parametrize(
    "place",
    [
        "precision=bf16/size=tiny/x$(touch PWNED)",
        *(f"precision={hostile}/{SIZE}" for hostile in ("`touch PWNED`", "bf16 ", "'bf16'", "bf16\n", "*", "\udcff")),
        *(
            f"precision=bf16/size={hostile}/{REST}"
            for hostile in ("tiny; touch PWNED", '"tiny"', "\x1b[2Jtiny", "tiny=x")
        ),
        *(f"-precision=bf16/{SIZE}", ".precision=bf16", "precision=bf16/size=tiny"),
        f"size=tiny/precision=bf16/{REST}",
        f"precision=bf16/precision=bf16/{SIZE}",
        *(f"precision=bf16/{SIZE}{more}" for more in ("/run=1", ".copy")),
        *(f"precision=bf16/{SIZE}".replace("512", number) for number in ("0512", " 512", "٥١٢")),
    ],
)
def test_a_path_that_is_no_cells_is_named_in_one_line(tmp_path, place):
    path = tmp_path / f"timing/cells/{place}.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    with pytest.raises(UserError) as raised:
        layout.recorded_cells(tmp_path, stages()["timing"])
    message = str(raised.value)
    assert message.startswith(f"{tmp_path}/timing/cells/")
    assert message.endswith("move it out of the results")
    assert message.isprintable()


@pytest.mark.parametrize("size", ["xl", "small"])
def test_a_record_in_the_place_of_another_cell_is_named_in_one_line(tmp_path, size):
    path = layout.record_path(tmp_path, "timing", CELL)
    write_record(WholeFile(path), record(cell={**cell_as_json(CELL), "size": size}))
    with pytest.raises(UserError) as raised:
        layout.recorded_cells(tmp_path, stages()["timing"])
    assert str(raised.value).startswith(f"{path} holds the record of another cell, timing precision=bf16 size={size} ")
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"cell": {"context_length": "$(touch PWNED)\n"}}, "its cell: context_length must be "),
        ({"cell": {"context_length": [[1]]}}, "cell.context_length must be text or a number or true or false"),
        ({"cell": {"seq_len": 1}}, "its cell: unknown key 'seq_len'"),
        ({"stage": "flash"}, 'stage must be one of timing, got "flash"'),
    ],
)
def test_a_record_of_something_else_is_named_in_one_line(tmp_path, parts, complaint):
    path = layout.record_path(tmp_path, "timing", CELL)
    write_record(WholeFile(path), record(**parts))
    with pytest.raises(UserError) as raised:
        layout.recorded_cells(tmp_path, stages()["timing"])
    assert str(raised.value).startswith(f"{path} is no record: {complaint}")
    assert str(raised.value).isprintable()
