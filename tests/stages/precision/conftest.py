"""Tables of a real run on the CPU with small inputs, of a GPU-like one made from it, and of cells without figures."""

import io
from dataclasses import asdict

import pandas as pd
import pytest

from pipeline.cells.disk import WholeFile
from pipeline.cells.record import SCHEMA_VERSION, write_record
from pipeline.cells.tabulate import SOFTWARE, row_table
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.report.table_rows import read_rows
from pipeline.stages.precision.cell import EXPERIMENTS, Cell, Settings
from pipeline.stages.precision.measure import measure

SETTINGS = Settings(d_model=256, input_rows=4)


def record(cell, rows):
    software = dict.fromkeys(SOFTWARE, "2.0")
    return {
        "schema_version": SCHEMA_VERSION,
        "stage": "precision",
        "cell": asdict(cell),
        "settings": asdict(SETTINGS),
        "rows": rows,
        "machine": {"kind": "Test machine", "software": software},
        "code": {"digest": "abc"},
        "command": "python -m pipeline measure",
        "process": "ordinary",
        "started_at": "2026-01-01T00:00:00Z",
        "seconds": {},
    }


def skipped(cell):
    return [{**key, "status": "skipped", "reason": "no CUDA GPU"} for key in cell.row_keys()]


@pytest.fixture(scope="session")
def as_tables(tmp_path_factory):
    """Write rows by cell as records, read these as one table, and that again as CSV: what a section gets."""

    def write(rows_by_cell):
        folder = tmp_path_factory.mktemp("records")
        paths = []
        for cell, rows in rows_by_cell.items():
            paths.append(folder / f"{cell.experiment}-{cell.device}.json")
            write_record(WholeFile(paths[-1]), record(cell, rows))
        by_experiment = {}
        for cell, path in zip(rows_by_cell, paths, strict=True):
            by_experiment.setdefault(cell.experiment, []).append(path)
        texts = [row_table(group).to_csv(index=False) for group in by_experiment.values()]
        tables = [read_rows(io.StringIO(text)) for text in texts]
        return pd.concat(tables, ignore_index=True)

    return write


@pytest.fixture(scope="session")
def cpu_rows_by_cell():
    cells = [Cell(experiment, "cpu") for experiment in EXPERIMENTS]
    return {cell: measure(cell, SETTINGS, Stopwatch()) for cell in cells}


@pytest.fixture(scope="session")
def cuda_rows_by_cell(cpu_rows_by_cell):
    """Make what a GPU gives, as far as it is known: the same, but layer norm and all losses in fp32."""

    def on_gpu(row):
        in_fp32 = row.get("component") in ("layernorm_input", "layernorm_output")
        in_fp32 = in_fp32 or row.get("detail") == "sum of the logits"
        return {**row, "device_name": "NVIDIA H200", **({"observed_dtype": "fp32"} if in_fp32 else {})}

    return {Cell(cell.experiment, "cuda"): [on_gpu(row) for row in rows] for cell, rows in cpu_rows_by_cell.items()}


@pytest.fixture(scope="session")
def skipped_rows_by_cell():
    cells = [Cell(experiment, "cuda") for experiment in EXPERIMENTS]
    return {cell: skipped(cell) for cell in cells}


@pytest.fixture(scope="session")
def tables(as_tables, cpu_rows_by_cell, cuda_rows_by_cell, skipped_rows_by_cell):
    """The rows of the section, by machine: a laptop without a GPU, a GPU host, and one where nothing ran."""
    return {
        "laptop": as_tables(cpu_rows_by_cell | skipped_rows_by_cell),
        "gpu": as_tables(cpu_rows_by_cell | cuda_rows_by_cell),
        "cuda_only": as_tables(cuda_rows_by_cell),
        "nothing": as_tables(skipped_rows_by_cell),
    }
