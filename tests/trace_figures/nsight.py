"""Pages of Nsight Compute, and exports of Nsight Systems."""

import json

from trace_figures.figures import Run, check


def nsight_compute(run: Run) -> None:
    """Section 8: a details page."""
    whose = "the file"
    check("copy_blocked rows", run.captures["copy_blocked.csv"]["metrics"], 83, whose)
    check("copy_blocked read", run.captures["copy_blocked.csv"]["complete"], True, whose)
    rows = run.query("SELECT * FROM gpu.kernel_metrics")
    kernels = {row["kernel"].split("[")[0] for row in rows}
    check("copy_blocked kernel", kernels, {"copy_blocked"}, "nsightful, tests/test_ncu.py")
    metrics = {(row["metric"], row["unit"]): row["value"] for row in rows if row["metric"]}
    for metric, unit, value in [
        ("Duration", "ns", 21058944.0),
        ("Elapsed Cycles", "cycle", 12319469.0),
        ("Memory Throughput", "%", 61.84),
        ("Memory Throughput", "byte/s", 196456177859.63),
        ("Achieved Occupancy", "%", 96.26),
        ("Registers Per Thread", "register/thread", 32.0),
        ("Grid Size", None, 1024.0),
        ("Block Size", None, 256.0),
    ]:
        check(f"copy_blocked {metric} {unit or ''}".rstrip(), metrics.get((metric, unit)), value, whose)
    check("copy_blocked grid", {row["grid"] for row in rows}, {"[1024,1,1]"}, whose)
    rules = [row for row in rows if row["rule"]]
    check("copy_blocked rules", len(rules), 11, whose)
    first = (rules[0]["rule"], rules[0]["rule_type"]) if rules else None
    check("copy_blocked first rule", first, ("SOLBottleneck", "OPT"), whose)


def nsight_systems(run: Run) -> None:
    """Section 6: exports of 2022, 2024 and 2026."""
    h100, cloverleaf, saxpy = (
        f"capture LIKE '{name}%'" for name in ("h100_2gpu_1s.", "perlmutter-cloverleaf-cuda.", "saxpy-mpi-cuda_")
    )
    whose = "the file, by SQLite"
    kernels = run.query(
        f"SELECT device, stream, COUNT(*) AS n FROM gpu.kernels WHERE kind = 'kernel' AND {h100} GROUP BY device, stream ORDER BY device"
    )
    check("h100 kernels", [tuple(row.values()) for row in kernels], [(0, 7, 1721), (1, 15, 1721)], whose)
    sums = run.query(
        f"SELECT SUM(duration) AS s, COUNT(*) FILTER (WHERE launch_ts IS NULL) AS n FROM gpu.kernels WHERE kind = 'kernel' AND {h100}"
    )[0]
    check("h100 kernel ms", sums["s"] * 1e3, 44.830, whose, within=0.0005)
    check("h100 kernels without a call", sums["n"], 1810, whose)
    ranks = run.query(f"SELECT pid, rank, rank_source FROM python.captures WHERE {h100} ORDER BY pid")
    expected = [(111, 0, "device"), (112, 1, "device")]
    check("h100 processes", [tuple(row.values()) for row in ranks], expected, whose)
    count = run.query(f"SELECT SUM(operators) AS n FROM python.captures WHERE {h100}")[0]["n"]
    check("h100 ranges of emit_nvtx", count, 16782, whose)
    whose = "pipit, cloverleaf_gpu_trace.csv"

    def sums_of(what: str) -> tuple:
        sql = f"SELECT COUNT(*) AS n, SUM(bytes) AS bytes, SUM(duration) AS s FROM gpu.kernels WHERE {what} AND {cloverleaf}"
        row = run.query(sql)[0]
        return row["n"], row["bytes"], round(row["s"] * 1e9)

    for what, condition, theirs in [
        ("kernels", "kind = 'kernel'", (1312, None, 294404540)),
        ("HtoD", "name LIKE 'Memcpy HtoD%'", (254, 225065752, 9346285)),
        ("DtoH", "name LIKE 'Memcpy DtoH%'", (25, 51200, 44638)),
        ("par_ranged2d_kernel", "name LIKE '%par_ranged2d_kernel%'", (331, None, 267056876)),
        ("par_reduce_kernel", "name LIKE '%par_reduce_kernel%'", (13, None, 22654310)),
        ("par_ranged1d_kernel", "name LIKE '%par_ranged1d_kernel%'", (968, None, 4693354)),
    ]:
        check(f"cloverleaf {what}: calls, bytes, ns", sums_of(condition), theirs, whose)
    whose = "the file, by SQLite"
    for kind, theirs in [("kernel", 5), ("memcpy", 15)]:
        count = run.query(f"SELECT COUNT(*) AS n FROM gpu.kernels WHERE kind = '{kind}' AND {saxpy}")[0]["n"]
        check(f"saxpy {kind}", count, theirs, whose)
    row = run.query(f"SELECT launches, spans, reasons FROM python.captures WHERE {saxpy}")[0]
    check("saxpy runtime calls", row["launches"], 95, whose)
    named = json.loads(row["reasons"])["NVTX name of a thread, category or domain"]
    check("saxpy NVTX: ranges and names", row["spans"] + named, 24, whose)
