"""What the tests of every section share: does the prose say only what its tables say? And tables to say it of."""

import re
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from pipeline.cells.record import SCHEMA_VERSION, write_record
from pipeline.cells.tabulate import row_table

NUMBER = re.compile(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?(?![\w]|\.\d)")
ROUNDS = 4
SOFTWARE = {"python": "3.12.3", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "driver": "580.65"}


@pytest.fixture(scope="session")
def as_table(tmp_path_factory):
    """Turn a cell's rows into what a section reads: through a record, the tabulation and a CSV file."""

    def make(cell, settings, rows, machine):
        record = {
            "schema_version": SCHEMA_VERSION,
            "cell": asdict(cell),
            "settings": asdict(settings),
            "rows": rows,
            "machine": {"kind": machine, "software": SOFTWARE},
        }
        folder = tmp_path_factory.mktemp("table")
        write_record(folder / "cell.json", record)
        row_table([folder / "cell.json"]).to_csv(folder / "rows.csv", index=False)
        return pd.read_csv(folder / "rows.csv", keep_default_na=False, na_values=[""])

    return make


@pytest.fixture(scope="session")
def prose():
    """Keep the sentences of a section: neither tables, code, summaries, links nor headings."""

    def sentences(text):
        lines = [line for line in text.splitlines() if not line.startswith(("|", "<", "!", "#", "    "))]
        return re.sub(r"`[^`]*`", "", "\n".join(lines))

    return sentences


@pytest.fixture(scope="session")
def numbers_that_stay(prose):
    """Find numbers of a section's prose that stay although every figure in its tables becomes another one.

    Such a number does not come from the tables. `keys` are the columns that say what a row is of: their values, and
    those of columns of text, may stand in a sentence; so may what is `allowed`. Columns of text that hold samples, one
    number after the other, are changed too.
    """

    def stay(build, rows, keys, allowed=()):
        rng = np.random.default_rng(0)
        found = _numbers(prose(build(rows)), rows)
        assert found, "there is no number in the prose"
        for _ in range(ROUNDS):
            found &= _numbers(prose(build(_perturbed(rows, keys, rng))), rows)
        known = {_plain(value) for key in keys for value in rows[key].dropna().unique()}
        return found - known - set(allowed)

    return stay


def _perturbed(rows, keys, rng):
    changed = rows.copy()
    for name in rows.columns.difference(keys):
        if rows[name].dtype.kind in "if":
            changed[name] = rows[name] * rng.uniform(0.8, 1.25, len(rows))
        elif name.startswith("samples"):
            changed[name] = [_other_samples(text, rng) for text in rows[name]]
    return changed


def _other_samples(text, rng):
    if not isinstance(text, str):
        return text
    return " ".join(str(float(sample) * rng.uniform(0.8, 1.25)) for sample in text.split())


def _numbers(text, rows):
    """Return the numbers of a text, without thousands separators; those inside names are none."""
    names = {name for column in rows.select_dtypes(exclude="number") for name in rows[column].dropna().astype(str)}
    names = sorted((name for name in names if re.search(r"\d", name)), key=len, reverse=True)
    without_names = re.sub("|".join(map(re.escape, names)), "", text) if names else text
    return {_plain(float(found.replace(",", ""))) for found in NUMBER.findall(without_names)}


def _plain(value):
    return f"{value:g}" if isinstance(value, int | float | np.number) else str(value)
