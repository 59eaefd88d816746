"""The figures of HolisticTraceAnalysis."""

from pathlib import Path

from trace_figures.figures import Run, check, us


def holistic(run: Run) -> None:
    """Sections 3 and 4: HolisticTraceAnalysis."""
    whose = "HTA"
    ns = "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"
    queue = "hta/negative_queue_length_values_check/rank0.json.gz"
    mtia = "hta/mtia_trace_single_rank/mtia_rank_0.json.gz"

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
        whose,
    )
    check(
        "ns device events before the last step",
        value(ns, "SELECT COUNT(*) FROM gpu.kernels WHERE kind <> 'sync' AND step < 105 AND CAPTURE"),
        4876,
        whose,
    )
    check(
        "ns 135139",
        value(ns, "SELECT name FROM gpu.kernels WHERE correlation = 135139 AND CAPTURE"),
        "Memcpy DtoD (Device -> Device)",
        whose,
    )
    check(
        "ns 164926",
        "multi_tensor_apply_kernel"
        in (value(ns, "SELECT name FROM gpu.kernels WHERE correlation = 164926 AND CAPTURE") or ""),
        True,
        whose,
    )
    triton = "hta/triton_example/triton_example.json.gz"
    check(
        "triton first event, Unix ns",
        value(triton, "SELECT CAST(ts AS BIGINT) FROM python.captures WHERE CAPTURE"),
        2413669096090100 + 1727743122000000000,
        whose,
    )
    check(
        "triton operators of that name",
        value(
            triton, "SELECT COUNT(*) FROM python.operators WHERE name = 'triton_poi_fused_add_cos_sin_0' AND CAPTURE"
        ),
        1,
        whose,
    )
    simple = "hta/critical_path/end_to_end/simple_add/input/trace.json.gz"
    delays = run.query(
        f"SELECT CAST(ts AS BIGINT) - CAST(launch_ts AS BIGINT) AS ns FROM gpu.kernels WHERE name LIKE '%fft2d_r2c%' AND capture = '{run.captures[simple]['capture']}' ORDER BY ts"
    )
    check(
        "simple_add one of the fft kernels of the second forward, after its launch began",
        27000 in [row["ns"] for row in delays[2:]],
        True,
        whose,
    )
    base = "hta/trace_compare/base/base.json.gz"
    check(
        "trace_compare GPU events of step 1010",
        value(base, "SELECT COUNT(*) FROM gpu.kernels WHERE step = 1010 AND CAPTURE"),
        1,
        whose,
    )
    for name, total in [("ProfilerStep#1010", 122149), ("nccl:all_reduce", 67)]:
        ours = value(
            base, f"SELECT SUM(duration) FROM python.operators WHERE name = '{name}' AND (step = 1010) AND CAPTURE"
        )
        check(f"trace_compare {name}", us(ours), total, whose)
    for name, total in [("cudaEventQuery", 4), ("cudaLaunchKernel", 4)]:
        check(
            f"trace_compare {name}",
            us(
                value(base, f"SELECT SUM(duration) FROM gpu.launches WHERE name = '{name}' AND step = 1010 AND CAPTURE")
            ),
            total,
            whose,
        )
    multi = "hta/critical_path/cuda_event_sync_multi_stream/event_sync_trace.json.gz"
    streams = run.query(
        f"SELECT DISTINCT stream FROM gpu.kernels WHERE kind = 'kernel' AND capture = '{run.captures[multi]['capture']}' ORDER BY stream"
    )
    check("multi_stream streams", [row["stream"] for row in streams], [20, 24, 28], whose)
    points = one(
        queue,
        "SELECT COUNT(*) AS n, COUNT(DISTINCT stream) AS streams, MIN(length) AS least FROM gpu.queue_length WHERE CAPTURE",
    )
    check("queue points at least 12000", points["n"] >= 12000, True, whose)
    check("queue streams", points["streams"], 6, whose)
    check("queue shortest", points["least"], 0, whose)
    check(
        "queue kinds of copies",
        value(
            queue,
            "SELECT COUNT(DISTINCT split_part(split_part(name, ' (', 1), ' ', 2) || kind) FROM gpu.kernels WHERE kind IN ('memcpy', 'memset') AND CAPTURE",
        ),
        4,
        whose,
    )
    check(
        "queue overlapped %",
        value(queue, "SELECT percent FROM gpu.comm_overlap WHERE CAPTURE"),
        1.37,
        whose,
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
        whose,
        within=60,
    )
    check(
        "mtia stream 1 host_wait",
        us(value(mtia, "SELECT host_wait FROM gpu.idle_causes WHERE stream = 1 AND CAPTURE")),
        417937,
        whose,
        within=50,
        otherwise="mtia",
    )
    check(
        "mtia longest compute kernel",
        us(value(mtia, "SELECT MAX(duration) FROM gpu.kernels WHERE category = 'computation' AND CAPTURE")),
        77283,
        whose,
        within=2,
        otherwise="mtia",
    )
    check(
        "mtia dma_request sum",
        us(value(mtia, "SELECT SUM(duration) FROM gpu.kernels WHERE name = 'dma_request' AND CAPTURE")),
        400892,
        whose,
        within=2000,
        otherwise="mtia",
    )
    cpu = one(
        mtia, "SELECT duration, launch_duration, launch_delay FROM gpu.kernels WHERE correlation = 423 AND CAPTURE"
    )
    for column, total in [("launch_duration", 435.2), ("duration", 124.768), ("launch_delay", 0.0)]:
        check(f"mtia 423 {column}", us(cpu.get(column)) if cpu else None, total, whose, within=2, otherwise="mtia")
    ranks = {"hta/cpu_only/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz": 34, ns: 0, queue: 0}
    for file, rank in ranks.items():
        check(f"rank of {Path(file).name}", run.captures[file]["rank"], rank, "the file")


def critical_paths(run: Run) -> None:
    """Each step's path has all of its time, on traces of every kind; HTA's graphs are another definition (docs/import.md)."""
    for file in [
        "tb_plugin_2021/samples/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz",
        "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
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
