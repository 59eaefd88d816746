"""What an answer costs in a notebook: `make bench-reader`.

`import trainprobe as probe` beside a live collector, median of --runs with the least and the most: `SELECT 1` to a row
(bound 15 ms) and by ADBC (bound 1.5 ms, beside a server that plans nothing: --floor), and 10^6 rows of an integer, a float and
a text to pandas (bound 0.3 s), Polars, an Arrow table and plain Python. DuckDB gives the same rows to pandas from its own process, in turn with ours.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import adbc_driver_flightsql.dbapi as adbc
import duckdb
from overhead import Collector

ROWS = 1_000_000
COLUMNS = (
    "value AS step, value * 0.001 AS duration, CASE WHEN value % 2 = 0 THEN 'forward' ELSE 'backward' END AS stage"
)
OURS = f"SELECT {COLUMNS} FROM generate_series(1, {ROWS})"
PEER = OURS.replace(")", ") AS t(value)")


def measure(questions: dict[str, Callable[[], object]], runs: int) -> None:
    samples: dict[str, list[float]] = {name: [] for name in questions}
    for round in range(runs + 1):
        for name, question in questions.items():
            began = time.perf_counter()
            answer = question()
            took = time.perf_counter() - began
            del answer  # Freeing it must not count as a part of the next question's time.
            if round:  # The first round imports what the others use.
                samples[name].append(took)
    for name, times in samples.items():
        ordered = sorted(1000 * s for s in times)
        print(f"{name:44} {statistics.median(ordered):8.2f} ms   [{ordered[0]:.2f}, {ordered[-1]:.2f}]", flush=True)


@contextmanager
def floor_server(binary: str) -> Iterator[str]:
    """The socket of a server that answers every query with the same row."""
    with tempfile.TemporaryDirectory() as directory:
        socket = os.path.join(directory, "floor.sock")
        with subprocess.Popen([binary, socket]) as server:
            try:
                while not os.path.exists(socket):
                    if server.poll() is not None:
                        raise RuntimeError(f"{binary} ended with status {server.returncode}")
                    time.sleep(0.01)
                yield socket
            finally:
                server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", default=shutil.which("probe") or "probe")
    parser.add_argument("--floor", required=True, help="bench-flight-floor, of the same build")
    parser.add_argument("--runs", type=int, default=30)
    args = parser.parse_args()
    os.environ["PROBE_BIN"] = args.probe
    import trainprobe as probe

    collector = Collector(args.probe)
    try:
        run = probe.connect(f"unix:{collector.socket}")
        measure({"SELECT 1   (bound 15)": lambda: run.sql("SELECT 1").fetchall()}, 4 * args.runs)
        with (
            floor_server(args.floor) as floor,
            adbc.connect(f"grpc+unix://{collector.socket}", autocommit=True) as connection,
            adbc.connect(f"grpc+unix://{floor}", autocommit=True) as connection_to_floor,
            connection.cursor() as cursor,
            connection_to_floor.cursor() as cursor_of_floor,
        ):

            def ask(cursor: adbc.Cursor, sql: str) -> list[tuple[object, ...]]:
                cursor.execute(sql)
                return cursor.fetchall()

            last = "SELECT COUNT(*) FROM python.steps WHERE step > (SELECT MAX(step) - 10 FROM python.steps)"
            asked = {
                "SELECT 1 by ADBC   (bound 1.5)": partial(ask, cursor, "SELECT 1"),
                "  its floor, by a server that plans nothing": partial(ask, cursor_of_floor, "SELECT 1"),
                "rows of the last ten steps by ADBC": partial(ask, cursor, last),
            }
            measure(asked, 10 * args.runs)
        database = duckdb.connect()
        measure(
            {
                "10^6 rows to pandas   (bound 300)": lambda: run.sql(OURS).df(),
                "  DuckDB's own, in its process": lambda: database.execute(PEER).df(),
                "10^6 rows to Polars": lambda: run.sql(OURS).pl(),
                "10^6 rows to an Arrow table": lambda: run.sql(OURS).to_arrow_table(),
            },
            args.runs,
        )
        measure({"10^6 rows to plain Python": lambda: run.sql(OURS).fetchall()}, max(args.runs // 6, 3))
    finally:
        collector.stop()


if __name__ == "__main__":
    main()
