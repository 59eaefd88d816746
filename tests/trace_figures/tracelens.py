"""The figures of TraceLens."""

import csv

from trace_figures.figures import Run, check


def tracelens(run: Run) -> None:
    """Section 5: the CSV files beside the traces."""
    timeline = run.by_file("SELECT * FROM gpu.timeline")
    rows = {
        "computation_time": "computation",
        "exposed_comm_time": "exposed_comm",
        "exposed_memcpy_time": "exposed_memcpy",
        "busy_time": "busy",
        "idle_time": "idle",
        "total_time": "total",
        "total_comm_time": "comm",
    }
    for found in sorted(run.traces.glob("tracelens/**/gpu_timeline.csv")):
        trace = found.parent.with_name(found.parent.name.removesuffix("_perf_report_csvs") + ".json.gz").relative_to(
            run.traces
        )
        with found.open() as text:
            theirs = {row["type"]: float(row["time ms"]) for row in csv.DictReader(text)}
        ours = timeline[str(trace)][0]
        sets = "memset" if "normalization" in trace.name else None
        for kind, column in rows.items():
            if kind in theirs:
                check(
                    f"{trace.name} {column} ms",
                    ours[column] * 1e3,
                    theirs[kind],
                    "TraceLens, gpu_timeline.csv",
                    within=1e-3,
                    otherwise=sets,
                )
        summary = found.with_name("ops_summary.csv")
        if not summary.exists():
            continue
        capture = run.captures[str(trace)]["capture"]
        direct = {
            row["operator"]: row
            for row in run.query(
                f"SELECT operator, SUM(duration) AS s, COUNT(*) AS n FROM gpu.kernels WHERE operator IS NOT NULL AND kind IN ('kernel', 'memcpy', 'memset') AND capture = '{capture}' GROUP BY operator"
            )
        }
        with summary.open() as text:
            for row in csv.DictReader(text):
                mine = direct.get(row["name"], {}).get("s")
                key = "total_direct_kernel_time_sum"
                check(
                    f"{trace.name} {row['name']} direct",
                    None if mine is None else mine * 1e6,
                    float(row[key]),
                    "TraceLens, ops_summary.csv",
                    within=0.02,
                    otherwise=sets,
                )
