"""The figures of TraceLens."""

import csv
from pathlib import Path

from trace_figures.figures import Run, check, covered


def tracelens(run: Run) -> None:
    """Section 5: the CSV files beside the traces."""
    timeline = run.by_file("SELECT * FROM gpu.timeline")
    for found in sorted(run.traces.glob("tracelens/**/gpu_timeline.csv")):
        trace = str(
            found.parent.with_name(found.parent.name.removesuffix("_perf_report_csvs") + ".json.gz").relative_to(
                run.traces
            )
        )
        name = Path(trace).name
        gpu_timeline(found, name, timeline[trace][0])
        if (summary := found.with_name("ops_summary.csv")).exists():
            operators(run, summary, name, run.of(trace))
        if (summary := found.with_name("kernel_summary.csv")).exists():
            kernels(run, summary, name, run.of(trace))
    by_definition(run, timeline)


def sets(name: str) -> str | None:
    """The reason by which the figures of this trace differ, for the one that has sets in its operators."""
    return "memset" if "normalization" in name else None


def gpu_timeline(found: Path, name: str, ours: dict) -> None:
    rows = {
        "computation_time": "computation",
        "exposed_comm_time": "exposed_comm",
        "exposed_memcpy_time": "exposed_memcpy",
        "busy_time": "busy",
        "idle_time": "idle",
        "total_time": "total",
        "total_comm_time": "comm",
    }
    with found.open() as text:
        theirs = {row["type"]: float(row["time ms"]) for row in csv.DictReader(text)}
    whose = "TraceLens, gpu_timeline.csv"
    for kind, column in rows.items():
        if kind in theirs:
            check(f"{name} {column} ms", ours[column] * 1e3, theirs[kind], whose, within=1e-3, otherwise=sets(name))


def operators(run: Run, summary: Path, name: str, of: str) -> None:
    """Of each operator: the time of what it launched itself, how many calls launched something, and its share of all."""
    launched = {
        row["operator"]: row["s"]
        for row in run.query(
            f"SELECT operator, SUM(duration) AS s FROM gpu.kernels WHERE operator IS NOT NULL AND kind IN ('kernel', 'memcpy', 'memset') AND {of} GROUP BY operator"
        )
    }
    calls = {
        row["name"]: row["n"]
        for row in run.query(
            f"SELECT name, COUNT(*) AS n FROM python.operators WHERE device_self_duration > 0 AND {of} GROUP BY name"
        )
    }
    shares = {
        row["name"]: row["device_share"]
        for row in run.query(f"SELECT name, device_share FROM python.operator_profile WHERE kind = 'operator' AND {of}")
    }
    whose = "TraceLens, ops_summary.csv"
    with summary.open() as text:
        for row in csv.DictReader(text):
            mine = launched.get(row["name"])
            check(
                f"{name} {row['name']} direct",
                None if mine is None else mine * 1e6,
                float(row["total_direct_kernel_time_sum"]),
                whose,
                within=0.02,
                otherwise=sets(name),
            )
            check(f"{name} {row['name']} calls", calls.get(row["name"]), int(row["Count"]), whose)
            share, theirs = shares.get(row["name"]), float(row["Percentage (%)"])
            check(f"{name} {row['name']} share %", share, theirs, whose, within=0.005, otherwise=sets(name))


def kernels(run: Run, summary: Path, name: str, of: str) -> None:
    """Of each kernel of an operator on a stream: calls and time. A capture without operators has kernels only."""
    whose = "TraceLens, kernel_summary.csv"
    with summary.open() as text:
        theirs = list(csv.DictReader(text))
    operator = "operator" if "Parent cpu_op" in theirs[0] else "NULL"
    mine = {
        (row["operator"], row["name"], row["stream"]): row
        for row in run.query(
            f"SELECT {operator} AS operator, name, stream, kind, COUNT(*) AS n, SUM(duration) AS s FROM gpu.kernels WHERE {of} GROUP BY 1, name, stream, kind"
        )
    }
    names = {kernel for (_, kernel, _), row in mine.items() if row["kind"] == "kernel"}
    unlisted = sorted(names - {row["Kernel name"] for row in theirs})
    check(f"{name} kernels that only we have", unlisted, [], whose)
    for row in theirs:
        stream = int(float(row["Kernel stream"]))
        ours = mine.get((row.get("Parent cpu_op") or None, row["Kernel name"], stream), {})
        figure = f"{name} {row['Kernel name'][:60]} of {row.get('Parent cpu_op') or 'no operator'}"
        check(f"{figure} calls", ours.get("n"), int(row["Kernel duration (µs)_count"]), whose)
        time = float(row["Kernel duration (µs)_sum"])
        check(f"{figure} us", ours["s"] * 1e6 if ours else None, time, whose, within=0.002)


def by_definition(run: Run, timeline: dict[str, list[dict]]) -> None:
    """What TraceLens' definition leaves out, and what its implementation does besides."""
    qwen = "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    rows = run.query(
        f"SELECT CAST(ts AS BIGINT) AS begins, CAST(ts AS BIGINT) + CAST(ROUND(duration * 1e9) AS BIGINT) AS ends "
        f"FROM gpu.kernels WHERE kind <> 'sync' AND {run.of(qwen)}"
    )
    busy = covered((row["begins"], row["ends"]) for row in rows)
    total = max(row["ends"] for row in rows) - min(row["begins"] for row in rows)
    whose = "the file"
    check("Qwen, also what has no launch: busy ms", busy / 1e6, 45.647, whose, within=5e-4)
    check("Qwen, also what has no launch: total ms", total / 1e6, 49.653, whose, within=5e-4)
    layers = "tracelens/perf_model/normalization/normalization_layer_test.json.gz"
    check(
        "normalization_layer_test computation by the definition ms",
        timeline[layers][0]["computation"] * 1e3,
        1.018627,
        whose,
        within=1e-5,  # of times in floating point
    )
