"""Dumps of the Flight Recorder and of NCCL's inspector."""

import json
from collections import defaultdict
from pathlib import Path

from trace_figures.figures import Run, check


def flight_recorder(run: Run, dumps: Path) -> None:
    """Section 8: two hangs of 16 ranks, with known faults that were put in."""
    expected = {
        "gpu_error_1st": ("74", [12], "BFloat16", [4027, 5120], 289, {}),
        "lock_gil_1st": ("72", [9, 14], "BFloat16", [2048, 5120], 142, {"37": [9]}),
    }
    for name, (group, missing, dtype, size, entries, others) in expected.items():
        run.call("import", "--name", name, str(dumps / name))
        rows = [json.loads(line) for line in run.call(name, "hang", "--format", "ndjson").splitlines()]
        of = defaultdict(list)
        for row in rows:
            of[row["group_name"]].extend([row["rank"]] if row["entered"] == "missing" else [])
        whose = "nvidia-resiliency-ext, reference output and fault_injection.log"
        first = rows[0] if rows else {}
        check(f"{name} group of the verdict", first.get("group_name"), group, whose)
        check(f"{name} operation", first.get("operation_type"), "all_to_all", whose)
        check(f"{name} missing ranks in group {group}", of[group], missing, whose)
        check(f"{name} description", first.get("description"), "EXPERT_MODEL_PARALLEL_GROUP", whose)
        for other, theirs in others.items():
            check(f"{name} missing ranks in group {other}", of[other], theirs, "torch's fr_trace")
        sql = f"SELECT input_types, input_sizes FROM python.flight_recorder WHERE group_name = '{group}' AND seq = {first.get('seq', 0)}"
        issued = [json.loads(line) for line in run.call(name, "query", sql, "--format", "ndjson").splitlines()]
        check(f"{name} type", {row["input_types"] for row in issued}, {json.dumps([dtype])}, whose)
        # In an all_to_all each rank has a size of its own, and theirs is that of one.
        sizes = [json.loads(row["input_sizes"]) for row in issued]
        check(f"{name} size {size} is one of {sizes}", [size] in sizes, True, whose)
        sql = "SELECT COUNT(*) AS n, COUNT(DISTINCT state) AS states FROM python.flight_recorder"
        counted = json.loads(run.call(name, "query", sql, "--format", "ndjson"))
        check(f"{name} entries", counted["n"], entries, "the files")
        check(f"{name} states", counted["states"], 1, "the files")
        ranks = json.loads(
            run.call(name, "query", "SELECT COUNT(DISTINCT rank) AS n FROM python.captures", "--format", "ndjson")
        )
        check(f"{name} ranks", ranks["n"], 16, "the files")
    # torch's fr_trace lists each operation that a rank is missing in, and probe hang the first one of a group.
    sql = """SELECT DISTINCT g.rank FROM python.process_groups g WHERE g.group_name = '37' AND g.description = 'TENSOR_MODEL_PARALLEL_GROUP'
        AND NOT EXISTS (SELECT 1 FROM python.flight_recorder f WHERE f.group_name = '37' AND f.seq = 88687 AND f.operation_type = 'all_reduce' AND f.rank = g.rank)"""
    absent = [
        json.loads(line)["rank"] for line in run.call("lock_gil_1st", "query", sql, "--format", "ndjson").splitlines()
    ]
    check("lock_gil_1st missing ranks in all_reduce 88687 of group 37", absent, [9], "torch's fr_trace")


def nccl_inspector(run: Run) -> None:
    """Section 7 of the formats: the examples of NCCL's own page."""
    whose = "NCCL, plugins/profiler/inspector/README.md"
    rows = run.query(
        "SELECT operation_type, seq, communicator_rank, ranks, bytes, duration, algbw_gbps, busbw_gbps, ts IS NULL AS silent FROM python.nccl_inspector ORDER BY dumped"
    )
    theirs = [
        ("AllReduce", 1407, 2, 8, 17179869184, 0.061974, 277.210914, 485.119099, True),
        ("ReduceScatter", 1231, 4, 8, 2147483648, 0.041057, 418.439467, 366.134533, False),
    ]
    check("inspector rows", [tuple(row.values()) for row in rows], theirs, whose)
