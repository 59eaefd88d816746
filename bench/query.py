"""Questions over many torch_trace rows, ours and DuckDB's: `make bench-query`.

Runs `bench-query` (release), which makes the rows and asks over them, then asks DuckDB over the same rows in a
native table, on the same machine and with as many threads, at the same priority. p50 of the whole query, warm.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time

import duckdb

NICENESS = 5  # As the collector's query threads have it (crates/query/src/threads.rs).

PROFILE = """SELECT module, stage, COUNT(*) AS executions, AVG(duration) AS avg_time_sec,
    SUM(duration) AS total_time_sec, SUM(duration) * 100.0 / SUM(SUM(duration)) OVER () AS pct_time
    FROM t {where} GROUP BY module, stage ORDER BY total_time_sec DESC"""
QUERIES = {
    "last ten steps": PROFILE.format(where="WHERE step > (SELECT MAX(step) - 10 FROM t)"),
    "whole table": PROFILE.format(where=""),
    "by rank": "SELECT rank, COUNT(*), AVG(duration), SUM(duration) FROM t GROUP BY rank",
    "MAX(step)": "SELECT MAX(step) FROM t",
    "COUNT(*)": "SELECT COUNT(*) FROM t",
    "p95 by module": "SELECT module, approx_quantile(duration, 0.95) FROM t GROUP BY module",
}
# Of DuckDB's time, or milliseconds.
RATIO = {"last ten steps": 0.5, "whole table": 0.9, "by rank": 1.0, "p95 by module": 1.0}
MILLISECONDS = {"MAX(step)": 2.0, "COUNT(*)": 2.0}


def verdict(value: float, bound: float, less: bool = True) -> str:
    return "met" if (value <= bound if less else value >= bound) else "MISSED"


def peer(directory: str, rounds: int) -> dict[str, float]:
    os.nice(NICENESS)
    con = duckdb.connect()
    con.execute(f"SET threads = {os.cpu_count()}")
    con.execute(f"CREATE TABLE t AS SELECT * FROM read_parquet('{directory}/all/python.torch_trace/*.parquet')")
    times = {}
    for name, sql in QUERIES.items():
        seen = []
        for _ in range(rounds + 3):
            began = time.perf_counter()
            con.execute(sql).fetchall()
            seen.append(time.perf_counter() - began)
        times[name] = statistics.median(seen[3:]) * 1e3
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="target/release/bench-query")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--last-ten-before", type=float, help="ms of the last-ten-steps query at 10 M rows, for its bound at 100 M"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        home = {"PROBE_HOME": f"{directory}/home", "PROBE_RUNTIME_DIR": f"{directory}/run"}
        command = [args.binary, str(args.rows), directory, str(args.rounds)]
        output = subprocess.run(command, env=os.environ | home, stdout=subprocess.PIPE, text=True, check=True).stdout
        ours = {(line["what"], line["name"]): line["value"] for line in map(json.loads, output.splitlines())}
        theirs = peer(directory, args.rounds)
    rows = ours["memory", "rows"]
    print(
        f"{rows / 1e6:.1f} M rows, {os.cpu_count()} threads, DuckDB {duckdb.__version__}, load {os.getloadavg()[0]:.1f}"
    )
    print(f"{'p50, ms':16} {'memory':>9} {'half disk':>9} {'DuckDB':>9}")
    for name in QUERIES:
        memory, half, duck = ours["memory", name], ours["half on disk", name], theirs[name]
        if name in RATIO:
            said = f"{memory / duck:.2f} x DuckDB (bound {RATIO[name]}: {verdict(memory / duck, RATIO[name])})"
        else:
            said = f"bound {MILLISECONDS[name]} ms: {verdict(max(memory, half), MILLISECONDS[name])}"
        said += f"; half on disk {half / memory:.2f} x memory (bound 2: {verdict(half / memory, 2)})"
        print(f"{name:16} {memory:9.2f} {half:9.2f} {duck:9.2f}   {said}")
    if args.last_ten_before:
        growth = ours["memory", "last ten steps"] / args.last_ten_before
        print(f"last ten steps: {growth:.2f} x its time at 10 M rows (bound 1.5: {verdict(growth, 1.5)})")
    for where, bound in (("memory", 48), ("disk", 12)):
        value = ours[where, "bytes a row"]
        print(f"{where}: {value:.1f} bytes a row (bound {bound}: {verdict(value, bound)})")
    print(f"written to files: {ours['disk', 'rows a second written'] / 1e6:.2f} M rows/s")
    for name, bound in (
        ("rows a second", None),
        ("rows a second, a query every 100 ms", 8.0),
        ("rows a second, beside a generate_series bomb", None),
    ):
        value = ours["ingest", name] / 1e6
        said = f" (bound {bound}: {verdict(value, bound, less=False)})" if bound else ""
        print(f"ingest, M {name}: {value:.2f}{said}")


if __name__ == "__main__":
    main()
