"""Questions over many torch_trace rows, ours and DuckDB's: `make bench-query`.

Runs `bench-query` (release), which makes the rows and asks over them, then asks DuckDB over the same rows in native
tables, in a file and in memory, on the same machine and with as many threads, at the same priority. p50 of the whole
query, warm; ours also as it is asked for the first time, and by ADBC of a `probe serve` that holds the rows in memory.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import adbc_driver_flightsql.dbapi as adbc
import duckdb

LOOK_SECONDS = 1.0  # Between two looks at a collector's files.
NICENESS = 5  # As the collector's query threads have it (crates/common/src/priority.rs).

QUESTIONS = json.loads((pathlib.Path(__file__).parent / "query" / "questions.json").read_text())


def verdict(value: float, bound: float, less: bool = True) -> str:
    return "met" if (value <= bound if less else value >= bound) else "MISSED"


def peer(directory: str, rounds: int, database: str) -> dict[str, float]:
    """DuckDB's times over the same rows, in milliseconds, in a database at this path or `:memory:`."""
    con = duckdb.connect(database)
    con.execute(f"SET threads = {os.cpu_count()}")
    con.execute(f"CREATE TABLE t AS SELECT * FROM read_parquet('{directory}/all/python.torch_trace/*.parquet')")
    times = {}
    for question in QUESTIONS:
        sql = question.get("duckdb", question["sql"])
        samples = []
        for _ in range(rounds + 3):
            began = time.perf_counter()
            con.execute(sql).fetchall()
            samples.append(time.perf_counter() - began)
        times[question["name"]] = statistics.median(samples[3:]) * 1e3
    con.close()
    return times


def wait_for_files(home: str) -> None:
    """Wait until a collector writes its rows to files no more."""
    before: set[pathlib.Path] = set()
    while True:
        files = {path for path in pathlib.Path(home).rglob("*") if path.suffix in (".parquet", ".writing")}
        if files == before and not any(path.suffix == ".writing" for path in files):
            return
        before = files
        time.sleep(LOOK_SECONDS)


def by_adbc(binary: str, rows: int, rounds: int, environment: dict[str, str]) -> dict[str, float]:
    """Times of a client of ADBC over the same rows in a collector, in milliseconds."""
    command = [binary, "served", str(rows)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as served:
        assert served.stdin and served.stdout
        socket = json.loads(served.stdout.readline())["name"]
        wait_for_files(environment["PROBE_HOME"])
        times = {}
        with adbc.connect(f"grpc+unix://{socket}", autocommit=True) as connection, connection.cursor() as cursor:
            for question in QUESTIONS:
                sql = question["sql"].replace(" FROM t", " FROM python.torch_trace")
                samples = []
                for _ in range(rounds + 3):
                    began = time.perf_counter()
                    cursor.execute(sql)
                    cursor.fetch_arrow_table()
                    samples.append(time.perf_counter() - began)
                times[question["name"]] = statistics.median(samples[3:]) * 1e3
        served.stdin.close()
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
        client = by_adbc(args.binary, args.rows, args.rounds, os.environ | home)
        os.nice(NICENESS)
        in_file = peer(directory, args.rounds, f"{directory}/duck.db")
        in_memory = peer(directory, args.rounds, ":memory:")
    rows = ours["memory", "rows"]
    print(
        f"{rows / 1e6:.1f} M rows, {os.cpu_count()} threads, DuckDB {duckdb.__version__}, load {os.getloadavg()[0]:.1f}"
    )
    columns = f"{'memory':>9} {'first':>7} {'half disk':>9} {'first':>7} {'ADBC':>8} {'DuckDB file':>11} {'memory':>9}"
    print(f"{'p50, ms':16} {columns}")
    for question in QUESTIONS:
        name = question["name"]
        memory, half = ours["memory", name], ours["half on disk", name]
        duck = min(in_file[name], in_memory[name])
        if ratio := question.get("ratio"):
            note = f"{memory / duck:.2f} x DuckDB's better one (bound {ratio}: {verdict(memory / duck, ratio)})"
        else:
            bound = question["milliseconds"]
            note = f"bound {bound} ms: {verdict(max(memory, half), bound)}"
        note += f"; half on disk {half / memory:.2f} x memory (bound 2: {verdict(half / memory, 2)})"
        times = f"{memory:9.2f} {ours['memory, first', name]:7.2f} {half:9.2f} {ours['half on disk, first', name]:7.2f}"
        print(f"{name:16} {times} {client[name]:8.2f} {in_file[name]:11.2f} {in_memory[name]:9.2f}   {note}")
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
        note = f" (bound {bound}: {verdict(value, bound, less=False)})" if bound else ""
        print(f"ingest, M {name}: {value:.2f}{note}")


if __name__ == "__main__":
    main()
