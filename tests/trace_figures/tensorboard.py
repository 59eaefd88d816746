"""The figures of the TensorBoard plugin: of its real traces, and of its unit tests."""

import json

from trace_figures.figures import Run, check, us

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
    shares = {
        "kernel": 55.51,
        "memcpy": 1.08,
        "memset": 0.05,
        "runtime": 1.64,
        "dataloader": 33.37,
        "cpu": 7.7,
        "other": 0.65,
    }
    for column, value in shares.items():
        share = 100 * sum(row[column] for row in ours.values()) / sum(row["total"] for row in ours.values())
        check(f"resnet mean {column} %", share, value, whose, within=0.0051)
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
    within = {
        row["kind"]: us(row["s"])
        for row in run.query(
            f"SELECT kind, SUM(duration) AS s FROM gpu.kernels WHERE operator = 'aten::cudnn_convolution_backward_weight' AND {run.of(file)} GROUP BY kind"
        )
    }
    check("resnet cudnn_convolution_backward_weight kernels alone", within.get("kernel"), 141933, whose)
    check("resnet cudnn_convolution_backward_weight memsets", within.get("memset"), 528, whose)
    kernels = {
        row["name"]: row
        for row in run.by_file(
            f"SELECT capture, name, calls, total, mean, longest, shortest, blocks_per_sm, occupancy FROM gpu.kernel_profile WHERE capture = '{run.captures[file]['capture']}'"
        )[file]
    }
    check("resnet kernel names", len(kernels), 67, whose)
    check("resnet kernels", sum(row["calls"] for row in kernels.values()), 8772, whose)
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


def tensorboard_memory(run: Run) -> None:
    """Section 2: what operators allocated and freed, themselves and with the operators within them."""
    whose = "TensorBoard plugin, test_profiler.py"
    file = "tb_plugin_unit/memory_view.json"
    events = run.query(
        f"SELECT device, operator, action, size, CAST(ts AS BIGINT) AS ts FROM python.memory_events WHERE {run.of(file)}"
    )
    calls = run.query(
        f"SELECT name, CAST(ts AS BIGINT) AS begins, CAST(ROUND(duration * 1e9) AS BIGINT) AS lasts FROM python.operators WHERE {run.of(file)}"
    )

    def figures(those: list[dict]) -> list[int]:
        allocated = [row["size"] for row in those if row["action"] == "alloc"]
        freed = [row["size"] for row in those if row["action"] == "free"]
        return [sum(allocated) - sum(freed), sum(allocated), len(allocated)]

    for device, operator, itself, with_children, called in (
        ("cuda:0", "aten::to", [104, 104, 2], [104, 204, 3], 4),
        ("cuda:0", "aten::liner", [20, 130, 3], [20, 360, 7], 1),
        ("cpu", "aten::liner", [0, 100, 1], [50, 150, 2], 1),
    ):
        of_device = [row for row in events if row["device"] == device]
        of_name = [row for row in calls if row["name"] == operator]
        own = [row for row in of_device if row["operator"] == operator]
        during = [
            row
            for row in of_device
            if any(call["begins"] <= row["ts"] <= call["begins"] + call["lasts"] for call in of_name)
        ]
        name = f"memory_view {device} {operator}"
        check(f"{name} increase, allocated, count (self)", figures(own), itself, whose)
        check(f"{name} increase, allocated, count (with children)", figures(during), with_children, whose)
        check(f"{name} calls", len(of_name), called, whose)


def tensorboard_distributed(run: Run, steps: dict[str, list[dict]]) -> None:
    """Section 2: two workers, each a trace."""
    whose = "TensorBoard plugin, test_profiler.py"
    # Computing alone, computing beside communication, communicating alone, other. A step's time is given to kernels before
    # communication, and to communication before the host, so we have sums of two of them.
    for name, computing, (alone, both, communicating, other) in [
        ("distributed_nccl", "kernel", (30, 75, 75, 55)),
        ("distributed_nccl.1", "kernel", (121, 40, 74, 0)),
        ("distributed_gloo_cpu", "cpu", (47, 74, 35, 0)),
        ("distributed_gloo_cpu.1", "cpu", (36, 64, 34, 12)),
    ]:
        row = steps[f"tb_plugin_unit/{name}.json"][0]
        if computing == "kernel":
            theirs = [alone + both, communicating, other]
        else:
            theirs = [alone, both + communicating, other]
        ours = [us(row[computing]), us(row["communication"])]
        ours.append(us(row["total"]) - sum(ours))
        check(f"{name} overlap view: computing, communicating, other", ours, theirs, whose)
    file = "tb_plugin_unit/distributed_nccl.json"
    rows = run.query(
        f"""SELECT o.name, o.input_bytes AS bytes, GREATEST(CAST(o.ts AS BIGINT) + CAST(ROUND(o.duration * 1e9) AS BIGINT),
                CAST(k.ts AS BIGINT) + CAST(ROUND(k.duration * 1e9) AS BIGINT)) - CAST(o.ts AS BIGINT) AS lasts
            FROM python.operators o JOIN gpu.kernels k ON k.capture = o.capture AND k.external_id = o.external_id
            WHERE o.name LIKE 'nccl:%' AND o.{run.of(file)} ORDER BY o.ts"""
    )
    theirs = [("nccl:broadcast", 212480, 75), ("nccl:all_reduce", 8196000, 1558)]
    ours = [(row["name"], row["bytes"], row["lasts"] // 1000) for row in rows]
    check("distributed_nccl operations, bytes, from call to end us", ours, theirs, whose)
