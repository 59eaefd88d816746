"""Real traces of others, imported and held to the numbers that other people's code computed for them.

    python tests/traces.py [--probe PATH] [--traces DIRECTORY] [--all]

Imports every trace below `shared/traces/kineto`, which lies beside the project where it is at hand, and beside it the dumps in
`flight_recorder`, pages of Nsight Compute in `ncu`, exports of Nsight Systems in `nsys`, XPlane traces in `xplane`, execution traces
in `et` and dumps of NCCL's inspector in `nccl`; asks the tables and views, and prints a line a number: ours, theirs, whose. Without --all it prints the numbers that differ, and the sums. What we mean to
count otherwise is in `OTHERWISE` with the reason, and in docs/import.md. Ends with 1 where any other number differs.
"""

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Figures that we mean to count otherwise, and why.
OTHERWISE = {
    "same name": "the plugin takes an operator directly within one of the same name for one call; we keep both",
    "by id": "the plugin links by external id; we link by the launch, and it lies in the other operator",
    "memset": "TraceLens leaves out the five sets of this ROCm trace, which its own definition counts",
}

#: Figures that differ for a reason that is not known.
OPEN = {"mtia": "MTIA is read, and which of its events HTA takes is not known"}

checked: list[tuple[bool, str]] = []


def check(figure: str, ours, theirs, whose: str, within: float = 0.0, otherwise: str | None = None) -> None:
    """One number. `within` is the difference that rounding of the source allows."""
    if isinstance(ours, float) or isinstance(theirs, float):
        equal = ours is not None and theirs is not None and abs(ours - theirs) <= within + 1e-9 * abs(theirs)
    else:
        equal = ours == theirs
    why = {**OTHERWISE, **OPEN}.get(otherwise or "")
    state = "equal" if equal else "open" if otherwise in OPEN else "otherwise" if why else "DIFFERS"
    shown = f"{ours:.6g}" if isinstance(ours, float) else ours
    reason = f" ({why})" if why and not equal else ""
    checked.append((state != "DIFFERS", f"{state:9} {figure}: ours {shown}, theirs {theirs}, {whose}{reason}"))


class Run:
    """The imported run, one query a relation; rows by the file that they came from, relative to the traces."""

    def __init__(self, probe: str, traces: Path, home: Path, name: str = "traces") -> None:
        self.probe, self.traces, self.name = probe, traces, name
        self.environment = {**os.environ, "PROBE_HOME": str(home), "PROBE_RUNTIME_DIR": str(home / "runtime")}
        (home / "runtime").mkdir(mode=0o700, exist_ok=True)
        self.call("import", "--name", name, str(traces))
        captures = self.query("SELECT * FROM python.captures")
        self.files = {row["capture"]: str(Path(row["file"]).relative_to(traces)) for row in captures}
        self.captures = {self.files[row["capture"]]: row for row in captures}

    def call(self, *words: str) -> str:
        done = subprocess.run([self.probe, *words], env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"probe {words[0]} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def query(self, sql: str) -> list[dict]:
        return [json.loads(line) for line in self.call(self.name, "query", sql, "--format", "ndjson").splitlines()]

    def by_file(self, sql: str) -> dict[str, list[dict]]:
        found = defaultdict(list)
        for row in self.query(sql):
            found[self.files[row["capture"]]].append(row)
        return found


def us(seconds: float | None) -> float:
    return round((seconds or 0.0) * 1e6, 3)


CATEGORIES = ["kernel", "memcpy", "memset", "communication", "runtime", "dataloader", "cpu", "other", "total"]


def tensorboard_real(run: Run, steps: dict[str, list[dict]]) -> None:
    """Section 1: the plugin's answers on a real trace."""
    file = "tb_plugin_2021/samples/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz"
    whose = "TensorBoard plugin, result_check_file.txt"
    ours = {row["step"]: row for row in steps[file]}
    columns = ["kernel", "memcpy", "memset", "runtime", "dataloader", "cpu", "other"]
    theirs = {
        5: [98598, 1941, 90, 2796, 69317, 14091, 1115],
        6: [98570, 1947, 89, 2762, 57669, 12968, 1148],
        7: [98596, 1931, 91, 2877, 61257, 13768, 1213],
        8: [98623, 1938, 89, 2841, 56453, 13420, 1200],
        9: [98504, 1937, 87, 2788, 62690, 15025, 1141],
        10: [98641, 1798, 88, 3381, 48185, 12773, 1117],
    }
    check("resnet: steps", sorted(ours), sorted(theirs), whose)
    for step, values in theirs.items():
        for column, value in zip(columns, values, strict=True):
            check(f"resnet step {step} {column}", us(ours[step][column]) if step in ours else None, value, whose)
    means = {
        "kernel": 98589,
        "memcpy": 1915,
        "memset": 89,
        "runtime": 2908,
        "dataloader": 59262,
        "cpu": 13674,
        "other": 1156,
        "total": 177592,
    }
    for column, value in means.items():
        mean = us(sum(row[column] for row in ours.values()) / max(len(ours), 1))
        check(f"resnet mean {column}", mean, value, whose, within=0.51)
    lines = (run.traces / "tb_plugin_2021/test/result_check_file.txt").read_text().splitlines()
    operators = run.by_file(
        f"SELECT capture, name, calls, total, own, device_total, device_own FROM python.operator_profile WHERE capture = '{run.captures[file]['capture']}'"
    )[file]
    mine = {row["name"]: row for row in operators}
    listed = json.loads(lines[2])["data"]
    check("resnet operators in the table", sum(1 for row in listed if row["name"] in mine), 76, whose)
    pairs = [
        ("calls", "calls", 1),
        ("device_self_duration", "device_own", 1e6),
        ("host_self_duration", "own", 1e6),
        ("host_total_duration", "total", 1e6),
    ]
    for row in listed:
        for key, column, scale in pairs:
            value = mine.get(row["name"], {}).get(column)
            nested = "same name" if row["name"] == "aten::div" else None
            check(
                f"resnet {row['name']} {key}",
                None if value is None else round(value * scale),
                row[key],
                whose,
                otherwise=nested,
            )
    kernels = {
        row["name"]: row
        for row in run.by_file(
            f"SELECT capture, name, calls, total, mean, longest, shortest, blocks_per_sm, occupancy FROM gpu.kernel_profile WHERE capture = '{run.captures[file]['capture']}'"
        )[file]
    }
    check("resnet kernel names", len(kernels), 67, whose)
    check("resnet kernel time", us(sum(row["total"] for row in kernels.values())), 591532, whose)
    table = json.loads(lines[3])["data"]
    names = [column["name"] for column in table["columns"]]
    columns = {
        "Calls": ("calls", 1, 0),
        "Total Duration (us)": ("total", 1e6, 0.01),
        "Mean Duration (us)": ("mean", 1e6, 1),
        "Max Duration (us)": ("longest", 1e6, 0.01),
        "Min Duration (us)": ("shortest", 1e6, 0.01),
        "Mean Blocks Per SM": ("blocks_per_sm", 1, 0.0051),
        "Mean Est. Achieved Occupancy (%)": ("occupancy", 1, 0.0051),
    }
    for values in table["rows"]:
        row = dict(zip(names, values, strict=True))
        for key, (column, scale, within) in columns.items():
            value = kernels.get(row["Name"], {}).get(column)
            check(
                f"resnet {row['Name'][:60]} {key}",
                None if value is None else float(value * scale),
                float(row[key]),
                whose,
                within,
            )
    use = run.by_file("SELECT * FROM gpu.tensor_core_use")[file][0]
    used = run.by_file(f"SELECT * FROM gpu.utilization WHERE capture = '{run.captures[file]['capture']}'")[file]
    check("resnet devices", len(used), 1, whose)
    for column, value in {"utilization": 55.51, "sm_efficiency": 54.68, "occupancy": 49.13}.items():
        check(f"resnet {column} %", used[0][column], value, whose, within=0.0051)
    check("resnet tensor cores %", use["percent"], 0.0, whose)
    check("resnet eligible %", use["eligible_percent"], 68.0, whose, within=0.5)


def tensorboard_units(run: Run, steps: dict[str, list[dict]]) -> None:
    """Section 2: the plugin's unit tests."""
    whose = "TensorBoard plugin, test_profiler.py"
    all_of = dict.fromkeys(CATEGORIES)
    expected: dict[str, dict[int, dict[str, int]]] = {
        "all_categories": {
            1: {"kernel": 15, "memcpy": 10, "memset": 5, "runtime": 30, "dataloader": 180, "cpu": 35, "other": 125}
        },
        "runtime_called_by_profilerstep": {1: {"kernel": 8, "runtime": 20, "cpu": 0, "other": 272}},
        "no_profilerstep": {0: {"kernel": 100, "runtime": 10, "cpu": 70, "other": 140, "total": 320}},
        "multiple_profilersteps_no_overlap": {
            1: {"memcpy": 40, "runtime": 5, "cpu": 55, "other": 120, "total": 220},
            2: {"kernel": 200, "runtime": 5, "cpu": 45, "other": 10, "total": 260},
        },
        "multiple_profilersteps_with_overlap": {
            1: {"memcpy": 100, "runtime": 5, "cpu": 15, "other": 20, "total": 140},
            2: {"kernel": 200, "runtime": 5, "cpu": 25, "other": 0, "total": 230},
        },
        "pure_cpu": {1: {"cpu": 10, "other": 190, "total": 200}, 2: {"cpu": 40, "other": 60, "total": 100}},
        "distributed_nccl": {0: dict(zip(all_of, [105, 0, 0, 75, 0, 0, 20, 35, 235], strict=True))},
        "distributed_gloo_cpu": {0: dict(zip(all_of, [0, 0, 0, 109, 0, 0, 47, 0, 156], strict=True))},
        "distributed_gloo_cpu.1": {0: dict(zip(all_of, [0, 0, 0, 98, 0, 0, 36, 12, 146], strict=True))},
    }
    for name, of_steps in expected.items():
        rows = sorted(steps[f"tb_plugin_unit/{name}.json"], key=lambda row: row["step"])
        check(f"{name} steps", len(rows), len(of_steps), whose)
        for row, values in zip(rows, of_steps.values(), strict=False):
            for column, value in values.items():
                check(f"{name} step {row['step']} {column}", us(row[column]), value, whose)
    check("last_steps_no_kernel steps", len(steps["tb_plugin_unit/last_steps_no_kernel.json"]), 1, whose)
    profile = run.by_file("SELECT * FROM python.operator_profile WHERE capture LIKE '%.json'")

    def operator(file: str, name: str, column: str) -> float:
        return us(sum(row[column] or 0 for row in profile[f"tb_plugin_unit/{file}.json"] if row["name"] == name))

    for file, name, column, value in [
        ("all_categories", "aten::nll_loss_backward", "total", 70),
        ("all_categories", "aten::nll_loss_backward", "own", 35),
        ("all_categories", "aten::nll_loss_backward", "device_total", 30),
        ("external_id", "aten::mat_mul", "device_total", 26),
        ("external_id", "aten::mat_mul", "device_own", 14),
        ("external_id", "aten::mm", "device_total", 12),
        ("external_id", "aten::mm", "device_own", 12),
        ("operator_relation", "aten::mat_mul", "own", 30),
        ("operator_relation", "aten::mm", "own", 70),
        ("operator_relation.1", "aten::mat_mul", "own", 30),
        ("operator_relation.1", "aten::mm", "own", 70),
        ("remove_dup_nodes", "aten::mm", "device_own", 8),
        ("top_level_runtime", "aten::mm", "device_total", 0),
    ]:
        check(
            f"{file} {name} {column}",
            operator(file, name, column),
            value,
            whose,
            otherwise="by id" if file == "external_id" else None,
        )
    kernels = run.by_file("SELECT * FROM gpu.kernel_profile WHERE capture LIKE '%.json'")
    check(
        "top_level_runtime kernels",
        sum(row["calls"] for row in kernels["tb_plugin_unit/top_level_runtime.json"]),
        1,
        whose,
    )
    several = kernels["tb_plugin_unit/runtime_launch_multipe_kernels.json"]
    check(
        "runtime_launch_multipe_kernels names, calls",
        [len(several), sum(row["calls"] for row in several)],
        [1, 2],
        whose,
    )
    blocks = kernels["tb_plugin_unit/gpu_utilization_kernel_out_of_step.json"]
    check("kernel_out_of_step blocks per SM", blocks[0]["blocks_per_sm"], (20 * 0.5 + 25 * 10.5) / 45, whose)
    out = "tb_plugin_unit/gpu_utilization_kernel_out_of_step.json"
    used = run.by_file(f"SELECT * FROM gpu.utilization WHERE capture = '{run.captures[out]['capture']}'")[out][0]
    ours = (used["utilization"], used["sm_efficiency"], used["occupancy"])
    check("kernel_out_of_step utilization, SM efficiency, occupancy", ours, (0.0, None, None), whose)
    use = run.by_file("SELECT * FROM gpu.tensor_core_use")["tb_plugin_unit/tensor_core.json"][0]
    check("tensor_core %", use["percent"], 60.0, whose)
    check("tensor_core eligible %", use["eligible_percent"], 60.0, whose)
    memory = run.by_file(
        "SELECT capture, device, operator, SUM(CASE WHEN action = 'alloc' THEN size ELSE -size END) AS increase, "
        "COALESCE(SUM(size) FILTER (WHERE action = 'alloc'), 0) AS allocated, COUNT(*) FILTER (WHERE action = 'alloc') AS count "
        "FROM python.memory_events GROUP BY capture, device, operator"
    )["tb_plugin_unit/memory_view.json"]
    for device, operator, theirs in (
        ("cuda:0", "aten::to", [104, 104, 2]),
        ("cuda:0", "aten::liner", [20, 130, 3]),
        ("cpu", "aten::liner", [0, 100, 1]),
    ):
        ours = [row for row in memory if (row["device"], row["operator"]) == (device, operator)]
        figures = [ours[0][column] for column in ("increase", "allocated", "count")] if ours else None
        check(f"memory_view {device} {operator} increase, allocated, count (self)", figures, theirs, whose)


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


def flight_recorder(run: Run, dumps: Path) -> None:
    """Section 8: two hangs of 16 ranks, with known faults that were put in."""
    expected = {
        "gpu_error_1st": ("74", [12], "BFloat16", 289, {}),
        "lock_gil_1st": ("72", [9, 14], "BFloat16", 142, {"37": [9]}),
    }
    for name, (group, missing, dtype, entries, others) in expected.items():
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
        for other, theirs in others.items():
            check(f"{name} missing ranks in group {other}", of[other], theirs, "torch's fr_trace")
        sql = f"SELECT DISTINCT input_types FROM python.flight_recorder WHERE group_name = '{group}' AND seq = {first.get('seq', 0)}"
        types = [
            json.loads(line)["input_types"] for line in run.call(name, "query", sql, "--format", "ndjson").splitlines()
        ]
        check(f"{name} type", types, [json.dumps([dtype])], whose)
        sql = "SELECT COUNT(*) AS n, COUNT(DISTINCT state) AS states FROM python.flight_recorder"
        counted = json.loads(run.call(name, "query", sql, "--format", "ndjson"))
        check(f"{name} entries", counted["n"], entries, "the files")
        check(f"{name} states", counted["states"], 1, "the files")
        ranks = json.loads(
            run.call(name, "query", "SELECT COUNT(DISTINCT rank) AS n FROM python.captures", "--format", "ndjson")
        )
        check(f"{name} ranks", ranks["n"], 16, "the files")


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


def xplane(run: Run) -> None:
    """Section 7: TensorFlow of 2020, JAX on a GPU, and TPUs."""
    whose = "TraceLens, perf_report_csvs"
    jax, tpu, worker = (f"capture LIKE '{name}%'" for name in ("chi-mi300x-013", "tpu_inference_2", "gpu_multi_worker"))

    def one(sql: str) -> dict:
        rows = run.query(sql)
        return rows[0] if rows else {}

    counts = one(
        f"SELECT COUNT(*) FILTER (WHERE kind = 'kernel') AS kernels, COUNT(*) FILTER (WHERE kind = 'memcpy') AS copies, COUNT(*) FILTER (WHERE kind = 'kernel' AND operator LIKE 'cudnn-conv%') AS conv FROM gpu.kernels WHERE {jax}"
    )
    check("jax kernels", counts["kernels"], 25, "the file")
    check("jax copies", counts["copies"], 53, "the file")
    check("jax kernels of convolutions", counts["conv"], 10, "TraceLens, tests/test_jax_conv_analysis.py")
    check("jax other kernels", counts["kernels"] - counts["conv"], 15, "TraceLens, tests/test_jax_conv_analysis.py")
    # The time in which any of a device's activities ran.
    busy = run.query(
        f"""WITH activity AS (
            SELECT device, CAST(ts AS BIGINT) AS begins, CAST(ts AS BIGINT) + CAST(ROUND(duration * 1e9) AS BIGINT) AS ends
            FROM gpu.kernels WHERE {jax}
        ), edge AS (
            SELECT device, begins AS at, 1 AS change FROM activity UNION ALL SELECT device, ends, -1 FROM activity
        ), running AS (
            SELECT device, at, SUM(change) OVER (PARTITION BY device ORDER BY at, change DESC ROWS UNBOUNDED PRECEDING) AS running,
                LEAD(at) OVER (PARTITION BY device ORDER BY at, change DESC) - at AS length FROM edge
        ) SELECT device, SUM(CASE WHEN running > 0 THEN length ELSE 0 END) / 1e6 AS busy, SUM(length) / 1e6 AS total
          FROM running GROUP BY device ORDER BY device"""
    )
    theirs = {0: ("copies", 0.889028, 26.978700, 27.867728), 7: ("computation", 3.586493, 12.174808, 15.761301)}
    check("jax devices", [row["device"] for row in busy], sorted(theirs), whose)
    for row in busy:
        what, time, idle, total = theirs[row["device"]]
        within = 6e-5  # both ends of 53 activities are in whole nanoseconds
        check(f"jax GPU:{row['device']} {what} ms", row["busy"], time, whose, within)
        check(f"jax GPU:{row['device']} idle ms", row["total"] - row["busy"], idle, whose, within)
        check(f"jax GPU:{row['device']} total ms", row["total"], total, whose, within)
    names = {row["name"]: row for row in run.query(f"SELECT name, calls, total FROM gpu.kernel_profile WHERE {jax}")}
    summary = run.traces / "jax_mi300_legacy" / "perf_report_csvs" / "kernel_launchers_summary.csv"
    with summary.open() as text:
        for row in csv.DictReader(text):
            mine = names.get(row["name"], {})
            check(f"jax {row['name'][:40]} calls", mine.get("calls"), int(row["Count"]), whose)
            check(
                f"jax {row['name'][:40]} us",
                us(mine.get("total")),
                float(row["total_direct_kernel_time_sum"]),
                whose,
                0.006,
            )
    whose = "the file"
    without = one(f"SELECT without_launch AS n FROM python.captures WHERE {jax}")
    check("jax activities without a launch", without["n"], 0, whose)
    operations = one(f"SELECT COUNT(*) AS n, SUM(duration) * 1e3 AS ms FROM gpu.kernels WHERE device = 0 AND {tpu}")
    check("tpu XLA Ops of TPU:0", operations["n"], 1504, whose)
    check("tpu XLA Ops of TPU:0 ms", operations["ms"], 78784.928, whose, within=0.002)
    reasons = json.loads(one(f"SELECT reasons FROM python.captures WHERE {tpu}")["reasons"])
    programs = reasons.get("run of a program, which is in the module of its activities")
    check("tpu XLA Modules of four cores", programs, 105 + 3 * 103, whose)
    outside = one(f"SELECT COUNT(*) AS n FROM gpu.kernels WHERE module IS NULL AND {tpu}")
    check("tpu operations in no program", outside["n"], 0, whose)
    stream = one(f"SELECT COUNT(*) AS n FROM gpu.kernels WHERE device = 4 AND stream = 134 AND {worker}")
    check("gpu_multi_worker GPU:4 stream 134", stream["n"], 665, whose)
    steps = run.query(f"SELECT steps, first_step, last_step FROM python.captures WHERE {worker}")
    check("gpu_multi_worker steps", [tuple(row.values()) for row in steps], [(1, 0, 0)], whose)
    of_step = one(f"SELECT COUNT(*) AS n FROM gpu.kernels WHERE device = 4 AND stream = 134 AND step = 0 AND {worker}")
    check("gpu_multi_worker GPU:4 stream 134 in step 0", of_step["n"], 665, whose)
    for row in run.query(
        "SELECT capture, events, operators + kernels + launches + frames + left_out AS told FROM python.captures"
    ):
        check(f"{row['capture']} events that became rows or are counted", row["told"], row["events"], whose)


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


def execution_traces(run: Run) -> None:
    """Execution traces of torch 1.13 to 2.15: what the files say, and what a Kineto trace beside one says."""
    whose = "the file"
    theirs = {
        "linear_et.json.gz": (928, 710, 0),
        "resnet_2gpu_et.json.gz": (14389, 10818, 1),
    }
    for file, (nodes, operators, groups) in theirs.items():
        capture = f"capture = '{run.captures[file]['capture']}'"
        rows = run.query(
            f"SELECT COUNT(*) AS n, COUNT(*) FILTER (WHERE kind = 'operator') AS o, COUNT(depth) AS d FROM python.execution_trace WHERE {capture}"
        )[0]
        check(f"{file} nodes", rows["n"], nodes, whose)
        check(f"{file} operators", rows["o"], operators, whose)
        check(f"{file} nodes whose callers are all there", rows["d"], nodes, whose)
        found = run.query(f"SELECT group_name, description, group_size FROM python.process_groups WHERE {capture}")
        check(
            f"{file} process groups", [tuple(row.values()) for row in found], [("0", "default_pg", 2)][:groups], whose
        )


def execution_trace_beside(run: Run) -> None:
    """The execution trace and the Kineto trace of the same steps."""
    both = "FROM python.execution_trace e JOIN python.operators o ON o.record_function = e.record_function"
    # The other pair that lies there is of 2023, when Kineto did not write the number.
    for trace, kineto in [("execution_trace_1.1.1", "cpu_stacks_shapes")]:
        sql = f"SELECT COUNT(*) AS n, COUNT(*) FILTER (WHERE e.name = o.name) AS same {both} WHERE e.capture LIKE '{trace}%' AND o.capture LIKE '{kineto}%'"
        row = run.query(sql)[0]
        check(
            f"{trace} calls joined by record function have the same name in Kineto",
            row["same"],
            row["n"],
            "the two files",
        )
        check(f"{trace} calls are joined at all", row["n"] > 20, True, "the two files")


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


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--probe", default=shutil.which("probe") or "probe")
    arguments.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces" / "kineto")
    arguments.add_argument("--all", action="store_true", help="print every number, also those that are equal")
    given = arguments.parse_args()
    if not given.traces.is_dir():
        print(f"skipped: there are no traces in {given.traces}")
        return 0
    with tempfile.TemporaryDirectory() as home:
        run = Run(given.probe, given.traces.resolve(), Path(home))
        asked = [row["capture"] for file, row in run.captures.items() if file.startswith("tb_plugin_")]
        names = ", ".join(f"'{name}'" for name in asked)
        steps = run.by_file(f"SELECT * FROM python.step_categories WHERE capture IN ({names})")
        tensorboard_real(run, steps)
        tensorboard_units(run, steps)
        holistic(run)
        tracelens(run)
        critical_paths(run)
        if (dumps := given.traces.resolve().parent / "flight_recorder").is_dir():
            flight_recorder(run, dumps)
        beside = given.traces.resolve().parent
        if (beside / "ncu").is_dir():
            nsight_compute(Run(given.probe, beside / "ncu", Path(home), "ncu"))
        if (beside / "nsys").is_dir():
            nsight_systems(Run(given.probe, beside / "nsys", Path(home), "nsys"))
        if (beside / "xplane").is_dir():
            xplane(Run(given.probe, beside / "xplane", Path(home), "xplane"))
        if (beside / "et").is_dir():
            execution_traces(Run(given.probe, beside / "et", Path(home), "et"))
        execution_trace_beside(run)
        if (beside / "nccl").is_dir():
            nccl_inspector(Run(given.probe, beside / "nccl", Path(home), "nccl"))
    for _, line in checked:
        if given.all or not line.startswith("equal"):
            print(line)
    count = {
        state: sum(1 for _, line in checked if line.startswith(state))
        for state in ("equal", "otherwise", "open", "DIFFERS")
    }
    print(
        f"{len(checked)} numbers: {count['equal']} equal, {count['otherwise']} counted otherwise, {count['open']} open, {count['DIFFERS']} differ"
    )
    return 0 if all(good for good, _ in checked) else 1


if __name__ == "__main__":
    sys.exit(main())
