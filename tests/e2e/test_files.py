"""What `probe query` writes for programs is what pyarrow reads."""

from __future__ import annotations

import subprocess

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from conftest import PROBE, Home

ROWS = 300_000
SQL = f"""
SELECT value AS step, value * 0.5 AS seconds, CASE WHEN value % 3 = 0 THEN NULL ELSE 'rank ' || (value % 2) END AS name,
       arrow_cast(value * 1000, 'Timestamp(ns, "UTC")') AS ts, value % 2 = 0 AS even
FROM generate_series(0, {ROWS - 1})
"""


def check(table: pa.Table) -> None:
    assert table.column_names == ["step", "seconds", "name", "ts", "even"]
    assert table.schema.field("ts").type == pa.timestamp("ns", "UTC")
    steps = table.sort_by("step").to_pydict()
    assert steps["step"] == list(range(ROWS))
    assert steps["seconds"][7] == 3.5
    assert steps["name"][:4] == [None, "rank 1", "rank 0", None]
    assert sum(steps["even"]) == ROWS // 2


def test_pyarrow_reads_what_query_writes(home: Home) -> None:
    assert home.probe("run", "--name", "short", "true").returncode == 0
    path = home.directory / "rows.parquet"
    written = home.probe("short", "query", SQL, "-o", str(path))
    assert (written.returncode, written.stdout, written.stderr) == (0, "", "")
    check(pyarrow.parquet.read_table(path))
    assert pyarrow.parquet.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"
    command = [PROBE, "short", "query", SQL, "--format", "arrow"]
    with subprocess.Popen(command, env=home.environment(), stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        reader = pyarrow.ipc.open_stream(child.stdout)
        check(reader.read_all())
    assert child.returncode == 0
