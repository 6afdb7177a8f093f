"""Read an nsys export, an SQLite database, into a trace."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd

from pipeline.instruments.profilers.nsys import CaptureFailed
from pipeline.instruments.profilers.trace import Trace, build_trace

PUSH_POP_RANGE = 59  # ENUM_NSYS_EVENT_TYPE: NvtxPushPopRange

# Times are nanoseconds since the session began.
_KERNELS = """
    SELECT names.value AS name, streamId AS stream, start, "end", correlationId AS correlation
    FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds AS names ON names.id = demangledName
"""
# CUpti_ActivityMemcpyKind in words.
_OPTIONAL = {
    "CUPTI_ACTIVITY_KIND_MEMCPY": """
    SELECT '[CUDA memcpy ' || CASE copyKind WHEN 1 THEN 'Host-to-Device' WHEN 2 THEN 'Device-to-Host'
        WHEN 8 THEN 'Device-to-Device' ELSE 'of kind ' || copyKind END || ']' AS name,
        streamId AS stream, start, "end", correlationId AS correlation
    FROM CUPTI_ACTIVITY_KIND_MEMCPY
    """,
    "CUPTI_ACTIVITY_KIND_MEMSET": """
    SELECT '[CUDA memset]' AS name, streamId AS stream, start, "end", correlationId AS correlation
    FROM CUPTI_ACTIVITY_KIND_MEMSET
    """,
}
# Calls of the CUDA runtime and driver; a global thread id is unique across all processes and threads.
_LAUNCHES = """
    SELECT correlationId AS correlation, start / 1e3 AS launch_us, globalTid AS thread
    FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId IS NOT NULL ORDER BY start
"""
# A range without an end was still open when the capture ended.
_RANGES = f"""
    SELECT coalesce(text, texts.value) AS name, globalTid AS thread, start,
        coalesce("end", (SELECT max("end") FROM NVTX_EVENTS)) AS "end"
    FROM NVTX_EVENTS LEFT JOIN StringIds AS texts ON texts.id = textId
    WHERE eventType = {PUSH_POP_RANGE}
"""


def read_export(database: Path) -> Trace:
    """Read the export of one program's capture.

    Raises CaptureFailed with a one-line reason if the file is not an nsys export, is damaged or truncated, or has no
    kernels or no ranges.
    """
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            return _read(connection, database)
    # pandas wraps sqlite3's errors; both say what is wrong in their first line.
    except (sqlite3.DatabaseError, pd.errors.DatabaseError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise CaptureFailed(f"{database.name} is no whole nsys export: {reason}") from None


def _read(connection: sqlite3.Connection, database: Path) -> Trace:
    # nsys leaves out the tables of what did not occur; those of kernels, launches and ranges must exist.
    present = set(pd.read_sql_query("SELECT name FROM sqlite_master WHERE type = 'table'", connection)["name"])
    optional = [query for table, query in _OPTIONAL.items() if table in present]
    work = pd.concat([_intervals(query, connection) for query in (_KERNELS, *optional)], ignore_index=True)
    ranges = _intervals(_RANGES, connection)
    if work.empty or ranges.empty:
        raise CaptureFailed(f"{database.name} holds no {'kernel' if work.empty else 'range'}")
    launches = pd.read_sql_query(_LAUNCHES, connection)
    return build_trace(work, launches, ranges, "nsys")


def _intervals(query: str, connection: sqlite3.Connection) -> pd.DataFrame:
    rows = pd.read_sql_query(query, connection)
    rows["start_us"] = rows["start"] / 1e3
    rows["duration_us"] = (rows["end"] - rows["start"]) / 1e3
    return rows.drop(columns=["start", "end"])
