from types import SimpleNamespace

import pytest

from pipeline.cells.resources import asked, resource_names


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ({"gpus": 2}, {"gpu": 2, "nodes": 1}),
        ({"gpus": 2, "nodes": 1}, {"gpu": 2, "nodes": 1}),
        (
            {"gpus": 8, "nodes": 2},
            {"gpu": 16, "nodes": 2, "mpi": "srun", "tasks": 2, "tasks_per_gpu": 0, "gres": "gpu:8"},
        ),
        ({"gpus": 0, "nodes": 2}, {"gpu": 0, "nodes": 2, "mpi": "srun", "tasks": 2, "tasks_per_gpu": 0, "gres": None}),
    ],
)
def test_a_cell_asks_for_gpus_and_nodes_and_over_nodes_for_a_task_on_each(cell, expected):
    assert asked(SimpleNamespace(**cell)) == expected
    assert set(expected) <= set(resource_names(cell))
