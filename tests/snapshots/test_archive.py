import bz2
import gzip
import io
import json
import lzma
import random
import subprocess
import sys
import tarfile

import pytest

from pipeline.cells.record import with_derived
from pipeline.errors import UserError
from pipeline.registry import stages
from pipeline.snapshots import records
from pipeline.snapshots.records import archived_records

from ..complaints import complaint
from ..records import record

RECORD = record()
CONTENT = json.dumps(RECORD).encode()


def packed(path, members, mode="w:xz"):
    """Write an archive of members given as name and content, or name and number of zero bytes."""
    with tarfile.open(path, mode) as file, open("/dev/zero", "rb") as zeros:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = content if isinstance(content, int) else len(content)
            file.addfile(member, zeros if isinstance(content, int) else io.BytesIO(content))
    return path


def complaint_of(path):
    return complaint(lambda: list(archived_records(path, stages())))


@pytest.mark.parametrize("mode", ["w:xz", "w:gz", "w:bz2", "w"])
def test_records_are_read_whatever_the_compression(tmp_path, mode):
    path = packed(tmp_path / "records.tar", [("a.json", CONTENT), ("table.csv", b"a,b"), ("b/c.json", CONTENT)], mode)
    read = with_derived(RECORD, stages())
    assert list(archived_records(path, stages())) == [(f"{path}: a.json", read), (f"{path}: b/c.json", read)]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_a_record_that_is_not_a_file_is_refused(tmp_path, kind):
    path, member = tmp_path / "records.tar", tarfile.TarInfo("a.json")
    member.type, member.linkname = kind, "elsewhere/a.json"
    with tarfile.open(path, "w") as file:
        file.addfile(member)
    assert complaint_of(path) == f"{path}: a.json is not a regular file: publish that run again"


def test_a_small_archive_of_a_large_record_is_refused_without_loading_it(tmp_path):
    path = packed(tmp_path / "records.tar.gz", [("cell.json", 200 * 2**20)], "w:gz")
    assert path.stat().st_size < 2**20
    code = (
        "import resource, sys; from pathlib import Path; from pipeline.snapshots.records import archived_records\n"
        "from pipeline.errors import UserError; from pipeline.registry import stages\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: list(archived_records(Path(sys.argv[1]), stages()))\n"
        "except UserError as error: print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    words = [sys.executable, "-c", code, path]
    output, grown_kib = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert output == f"{path}: cell.json is not a valid record: it is larger than 16 MiB"
    assert int(grown_kib) < 100 * 2**10


@pytest.mark.parametrize(
    ("limit", "value", "sizes", "message"),
    [
        ("MOST_ARCHIVE_BYTES", 2**20, [2**20], "unpacks to more than 1 MiB"),
        ("MOST_ARCHIVE_BYTES", 2**20, [2**17] * 8, "unpacks to more than 1 MiB"),
        ("MOST_ARCHIVE_MEMBERS", 3, [1] * 4, "has more than 3 members"),
    ],
)
def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch, limit, value, sizes, message):
    monkeypatch.setattr(records, limit, value)
    path = packed(tmp_path / "records.tar.xz", [(f"{number}.bin", size) for number, size in enumerate(sizes)])
    assert f"{path} {message}: {records.UNPACK}" == complaint_of(path)
    packed(path, [(f"{number}.json", CONTENT) for number in range(3)])
    assert len(list(archived_records(path, stages()))) == 3


def test_a_damaged_record_is_named_by_its_archive_and_member(tmp_path):
    path = packed(tmp_path / "records.tar.xz", [("a.json", CONTENT), ("b\n.json", b"[" * 200_000)])
    assert complaint_of(path).startswith(f"{path}: b\\n.json is not a valid record: ")


@pytest.mark.parametrize("seed", range(40))
def test_an_archive_with_random_errors_is_read_or_refused_in_one_line(tmp_path, seed):
    rng = random.Random(seed)
    path = packed(tmp_path / "records.tar", [("a.json", CONTENT), ("b" * 200 + ".json", CONTENT)], "w")
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 3, 30])):
        content[rng.randrange(len(content))] = rng.randrange(256)
    content = bytes(content[: rng.choice([len(content), rng.randrange(len(content))])])
    pack = rng.choice([bytes, lzma.compress, gzip.compress, bz2.compress])
    path.write_bytes(pack(content))
    try:
        output = " ".join(name for name, _ in archived_records(path, stages()))
    except UserError as refusal:
        output = str(refusal)
    # The names of records begin with the archive too; a truncated archive may have no record.
    assert not output or output.removeprefix("cannot read ").startswith(str(path))
