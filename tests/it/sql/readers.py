"""Reads a torch_trace file of ours with DuckDB, Polars and pyarrow; prints what each finds in it, a line a reader."""

import sys

import duckdb
import polars
import pyarrow.compute as pc
import pyarrow.parquet as pq

path = sys.argv[1]

row = duckdb.execute(
    f"""SELECT count(*), max(step), count(module), count(duration), max(duration), sum(host_duration), max(rank),
        epoch_ns(max(ts)) FROM read_parquet('{path}') WHERE stage = 'forward'"""
).fetchone()
print("duckdb", *row)

frame = polars.read_parquet(path).filter(polars.col("stage") == "forward")
print(
    "polars",
    frame.height,
    frame["step"].max(),
    frame["module"].count(),
    frame["duration"].count(),
    frame["duration"].max(),
    frame["host_duration"].sum(),
    frame["rank"].max(),
    frame["ts"].cast(polars.Int64).max(),
)

table = pq.read_table(path)
table = table.filter(pc.equal(table["stage"], "forward"))
columns = [
    pc.max(table["step"]),
    pc.count(table["module"]),
    pc.count(table["duration"]),
    pc.max(table["duration"]),
    pc.sum(table["host_duration"]),
    pc.max(table["rank"]),
    pc.max(table["ts"].cast("int64")),
]
print("pyarrow", table.num_rows, *[value.as_py() for value in columns])
