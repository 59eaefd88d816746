"""The figures of HolisticTraceAnalysis."""

import json
from pathlib import Path

from trace_figures.figures import Run, check, us

WHOSE = "HTA"
NS = "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"
QUEUE = "hta/negative_queue_length_values_check/rank0.json.gz"


def counts(run: Run) -> None:
    """Section 3, and the collectives of section 4."""
    ns, queue = NS, QUEUE

    def one(file: str, sql: str) -> dict:
        rows = run.query(sql.replace("CAPTURE", f"capture = '{run.captures[file]['capture']}'"))
        return rows[0] if rows else {}

    def value(file: str, sql: str):
        return next(iter(one(file, sql).values()), None)

    check(
        "ns annotations",
        value(
            ns, "SELECT COUNT(DISTINCT name) FROM python.operators WHERE kind = 'annotation' AND step < 105 AND CAPTURE"
        ),
        12,
        WHOSE,
    )
    check(
        "ns device events before the last step",
        value(ns, "SELECT COUNT(*) FROM gpu.kernels WHERE kind <> 'sync' AND step < 105 AND CAPTURE"),
        4876,
        WHOSE,
    )
    check(
        "ns 135139",
        value(ns, "SELECT name FROM gpu.kernels WHERE correlation = 135139 AND CAPTURE"),
        "Memcpy DtoD (Device -> Device)",
        WHOSE,
    )
    check(
        "ns 164926",
        "multi_tensor_apply_kernel"
        in (value(ns, "SELECT name FROM gpu.kernels WHERE correlation = 164926 AND CAPTURE") or ""),
        True,
        WHOSE,
    )
    triton = "hta/triton_example/triton_example.json.gz"
    check(
        "triton first event, Unix ns",
        value(triton, "SELECT CAST(ts AS BIGINT) FROM python.captures WHERE CAPTURE"),
        2413669096090100 + 1727743122000000000,
        WHOSE,
    )
    check(
        "triton operators of that name",
        value(
            triton, "SELECT COUNT(*) FROM python.operators WHERE name = 'triton_poi_fused_add_cos_sin_0' AND CAPTURE"
        ),
        1,
        WHOSE,
    )
    multi = "hta/critical_path/cuda_event_sync_multi_stream/event_sync_trace.json.gz"
    streams = run.query(
        f"SELECT DISTINCT stream FROM gpu.kernels WHERE kind = 'kernel' AND capture = '{run.captures[multi]['capture']}' ORDER BY stream"
    )
    check("multi_stream streams", [row["stream"] for row in streams], [20, 24, 28], WHOSE)
    points = one(
        queue,
        "SELECT COUNT(*) AS n, COUNT(DISTINCT stream) AS streams, MIN(length) AS least FROM gpu.queue_length WHERE CAPTURE",
    )
    check("queue points at least 12000", points["n"] >= 12000, True, WHOSE)
    check("queue streams", points["streams"], 6, WHOSE)
    check("queue shortest", points["least"], 0, WHOSE)
    check(
        "queue kinds of copies",
        value(
            queue,
            "SELECT COUNT(DISTINCT split_part(split_part(name, ' (', 1), ' ', 2) || kind) FROM gpu.kernels WHERE kind IN ('memcpy', 'memset') AND CAPTURE",
        ),
        4,
        WHOSE,
    )
    check(
        "queue overlapped %",
        value(queue, "SELECT percent FROM gpu.comm_overlap WHERE CAPTURE"),
        1.37,
        WHOSE,
        within=0.006,
    )
    check(
        "queue ncclKernel_SendRecv sum",
        us(
            value(
                queue,
                "SELECT SUM(duration) FROM gpu.kernels WHERE name LIKE 'ncclKernel_SendRecv%' AND step < 554 AND CAPTURE",
            )
        ),
        138211,
        WHOSE,
        within=60,
    )
    ranks = {"hta/cpu_only/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz": 34, ns: 0, queue: 0}
    for file, rank in ranks.items():
        check(f"rank of {Path(file).name}", run.captures[file]["rank"], rank, "the file")


def annotations(run: Run) -> None:
    """Section 3: which range of the program launched an activity."""
    of = run.of(NS)
    # An activity counts for the range that its launch lies in. HTA takes it from the range that is shown on the stream, and
    # takes none that was shown after the last step began.
    within = (
        "FROM gpu.kernels k JOIN python.operators a ON a.capture = k.capture AND CAST(k.launch_ts AS BIGINT) "
        "BETWEEN CAST(a.ts AS BIGINT) AND CAST(a.ts AS BIGINT) + CAST(ROUND(a.duration * 1e9) AS BIGINT) "
        f"WHERE a.kind = 'annotation' AND k.{of}"
    )
    last = f"SELECT CAST(ts AS BIGINT) FROM python.operators WHERE name = 'ProfilerStep#105' AND {of}"
    rows = run.query(
        f"SELECT COUNT(*) AS n {within} AND k.kind <> 'sync' AND k.step < 105 AND a.name = 'Optimizer.step#SGD.step' "
        f"AND CAST(k.ts AS BIGINT) < ({last})"
    )
    check("ns device events of Optimizer.step", rows[0]["n"], 27, WHOSE)
    for correlation, theirs in [(135139, "DistributedDataParallel.forward"), (164926, "Optimizer.step#SGD.step")]:
        rows = run.query(f"SELECT a.name {within} AND k.correlation = {correlation} ORDER BY a.depth DESC LIMIT 1")
        check(f"ns {correlation} is under", rows[0]["name"] if rows else None, theirs, WHOSE)


def launches(run: Run) -> None:
    """Section 3: an operator and what it launched, and the gaps around a kernel."""
    of = run.of("hta/critical_path/end_to_end/simple_add/input/trace.json.gz")
    fft = run.query(
        f"""SELECT since_launch, gap FROM (SELECT name, ts, CAST(ts AS BIGINT) - CAST(launch_ts AS BIGINT) AS since_launch,
                LEAD(CAST(ts AS BIGINT)) OVER (PARTITION BY stream ORDER BY ts)
                    - CAST(ts AS BIGINT) - CAST(ROUND(duration * 1e9) AS BIGINT) AS gap
            FROM gpu.kernels WHERE kind = 'kernel' AND {of}) WHERE name LIKE '%fft2d_r2c%' ORDER BY ts"""
    )
    check(
        "simple_add a fft kernel of the second forward: from its launch, to the next kernel ns",
        (27000, 7000) in [(row["since_launch"], row["gap"]) for row in fft[2:]],
        True,
        WHOSE,
    )
    second = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"
    rows = run.query(
        f"""SELECT name, CAST(ts AS BIGINT) AS begins, CAST(ROUND(duration * 1e9) AS BIGINT) AS lasts FROM python.operators
            WHERE name IN ('{second}', 'aten::relu_', 'aten::clamp_min_') AND {of} ORDER BY ts, depth"""
    )
    called = run.query(
        f"""SELECT CAST(ts AS BIGINT) AS begins, CAST(ROUND(duration * 1e9) AS BIGINT) AS lasts FROM gpu.launches
            WHERE name = 'cudaLaunchKernel' AND operator = 'aten::clamp_min_' AND {of} ORDER BY ts"""
    )
    names = [row["name"] for row in rows]
    first = names.index("aten::relu_", names.index(second))
    relu, clamp = rows[first : first + 2]
    launch = next(row for row in called if row["begins"] >= clamp["begins"])
    edges = [relu["begins"], clamp["begins"], launch["begins"]]
    edges += [one["begins"] + one["lasts"] for one in (launch, clamp, relu)]
    ours = [(after - before) / 1000 for before, after in zip(edges, edges[1:])]
    check("simple_add relu_, clamp_min_, launch and back us", ours, [15, 14, 17, 15, 32], WHOSE)


def compared(run: Run) -> None:
    """Section 3: a step of one trace, and what is different in that of another."""
    base, test = (f"hta/trace_compare/{name}/{name}.json.gz" for name in ("base", "test"))

    def of_host(file: str) -> dict[str, dict]:
        sql = " UNION ALL ".join(
            f"SELECT name, COUNT(*) AS n, SUM(duration) AS s FROM {table} WHERE step = 1010 AND {run.of(file)} GROUP BY name"
            for table in ("python.operators", "gpu.launches")
        )
        return {row["name"]: row for row in run.query(sql)}

    def on_device(file: str) -> int:
        return run.query(f"SELECT COUNT(*) AS n FROM gpu.kernels WHERE step = 1010 AND {run.of(file)}")[0]["n"]

    before, after = of_host(base), of_host(test)
    check("trace_compare CPU events of step 1010", sum(row["n"] for row in before.values()), 6, WHOSE)
    check("trace_compare GPU events of step 1010", on_device(base), 1, WHOSE)
    times = {"ProfilerStep#1010": 122149, "nccl:all_reduce": 67, "cudaEventQuery": 4, "cudaLaunchKernel": 4}
    for name, theirs in times.items():
        check(f"trace_compare {name}", us(before.get(name, {}).get("s")), theirs, WHOSE)
    same = [name for name in before if name in after and before[name]["n"] == after[name]["n"]]
    check("trace_compare CPU operations as often", len(same), 5, WHOSE)
    added = ["AddmmBackward0", "All2All_Pooled_Req", "CatBackward0"]
    check("trace_compare CPU operations added", sorted(after.keys() - before.keys()), added, WHOSE)
    check("trace_compare CPU operations deleted", sorted(before.keys() - after.keys()), ["nccl:all_reduce"], WHOSE)


def hardware_counters(run: Run) -> None:
    """Section 3: kernels with hardware counters, which have no table, are counted."""
    reasons = run.captures["hta/cupti_profiler/benchmark_result_924719_1679055439_trace.json.gz"]["reasons"]
    check("cupti_profiler kernels with counters", json.loads(reasons or "{}").get("hardware counters"), 77, WHOSE)


def critical_paths(run: Run) -> None:
    """Each step's path has all of its time, on traces of every kind; HTA's graphs are another definition (docs/import.md)."""
    for file in [
        "tb_plugin_2021/samples/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz",
        NS,
        "hta/critical_path/cuda_event_sync/event_sync_trace.json.gz",
        "hta/cpu_only/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
        "tb_plugin_unit/all_categories.json",
        "tb_plugin_unit/multiple_profilersteps_with_overlap.json",
    ]:
        capture = f"capture = '{run.captures[file]['capture']}'"
        steps = run.query(
            f"SELECT step, SUM(duration) AS s FROM python.operators WHERE name LIKE 'ProfilerStep#%' AND {capture} GROUP BY step"
        )
        paths = {
            row["step"]: row["s"]
            for row in run.query(
                f"SELECT step, SUM(seconds) AS s FROM python.critical_path WHERE {capture} GROUP BY step"
            )
        }
        for row in steps:
            check(f"{file} path of step {row['step']} us", us(paths.get(row["step"])), us(row["s"]), "the step", 0.001)
