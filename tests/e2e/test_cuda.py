"""A real GPU: nothing that training computes is changed, and what is said of the device is what others say.

Skipped where there is none; `make gpu-check` runs it where there is one.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import subprocess
import sys

import pytest

from conftest import PATIENCE, SCRIPTS, Home, Run, wait_for


def has_gpu() -> bool:
    """Whether the driver knows a device; torch is not asked, because loading it takes seconds."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


pytestmark = pytest.mark.skipif(not has_gpu(), reason="no GPU here")

#: Before 2.14, where there are process groups.
WITHOUT_HOOKS = "this torch's process groups have no hooks"
TRAINING = str(SCRIPTS / "cuda_training.py")
STEPS = 200
RANK = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}

#: Steps that each program takes (the device's times begin a moment after the first), and whether its modules are called by Python in each of them.
PROGRAMS = {
    "eager": (STEPS, True),
    "mixed_precision": (STEPS, True),
    "compiled": (STEPS, True),
    "compiled_graphs": (STEPS, True),
    "captured": (None, False),  # The graph is replayed without Python.
    "graphed_callables": (STEPS, True),
    "streams": (STEPS, True),
    "loader": (STEPS, True),
    "ddp": (STEPS, True),
    "fsdp": (STEPS, True),
    "checkpointed": (STEPS, True),
    "trainer": (STEPS, True),
    "lightning": (STEPS, True),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_training_computes_what_it_computes_without_us(home: Home, program: str) -> None:
    command = [sys.executable, TRAINING, program, str(STEPS)]
    environment = home.environment(**RANK)
    plain = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert plain.returncode == 0, plain.stderr
    run = home.train(*command, **RANK)
    assert run.finish().strip() == plain.stdout.strip()
    steps, called = PROGRAMS[program]
    (counted,) = run.query("SELECT COUNT(*) AS n, COUNT(device_duration) AS timed FROM python.steps")
    (agent,) = run.query("SELECT problem, layers FROM probe.agents")
    assert agent["problem"] is None or WITHOUT_HOOKS in agent["problem"], agent
    if steps is not None:
        assert counted["n"] == steps, (counted, agent)
        assert counted["timed"] >= steps // 4, (counted, agent)
    if called:
        sql = "SELECT COUNT(*) AS n, COUNT(total_duration) AS timed FROM python.torch_trace WHERE stage = 'forward'"
        (rows,) = run.query(sql)
        assert rows["n"] >= STEPS and rows["timed"] >= rows["n"] // 4, (rows, agent)
    lost = run.query("SELECT * FROM probe.drops")
    assert not [row for row in lost if row["table_name"] in ("python.torch_trace", "python.steps")], lost


@pytest.fixture
def training(home: Home) -> Run:
    run = home.train(sys.executable, TRAINING, "eager", "100000000", PROBE_GPU_METRICS="200ms")
    run.wait_for_step(100)
    return run


def test_a_live_training_is_described_as_the_driver_and_torch_do(home: Home, training: Run) -> None:
    run = training
    # The driver's own tool.
    fields = "uuid,name,memory.total,power.limit"
    asked = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "--id=0"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip().split(", ")
    sql = "SELECT * FROM gpu.metrics WHERE ranks IS NOT NULL OR utilization > 0 ORDER BY ts DESC LIMIT 1"
    (gpu,) = wait_for("the GPU at work", lambda: run.query(sql))  # type: ignore[misc]
    assert (gpu["uuid"], gpu["name"]) == (said[0], said[1])
    assert gpu["memory_total"] == pytest.approx(float(said[2]) * 1.048576, rel=0.02)
    assert gpu["power_limit"] == pytest.approx(float(said[3]), rel=0.01)
    assert 0 < gpu["memory_used"] < gpu["memory_total"] and 0 < gpu["temperature"] < 110 and gpu["sm_clock"] > 100
    # torch itself, asked beside training and between two steps.
    for where in ("now", "step"):
        done = run.eval("import torch; (torch.cuda.memory_reserved(), torch.cuda.get_device_name())", "--at", where)
        assert done.returncode == 0, done.stderr
        reserved, name = eval(done.stdout.strip().splitlines()[-1])
        assert name == gpu["name"]
        (memory,) = run.query("SELECT * FROM python.memory WHERE device = 'cuda:0' ORDER BY step DESC LIMIT 1")
        assert memory["reserved"] == pytest.approx(reserved / 1e6)
        assert 0 < memory["allocated"] <= memory["max_allocated"] <= memory["reserved"]
    (environment,) = run.query("SELECT * FROM python.environment ORDER BY ts DESC LIMIT 1")
    assert environment["gpu_count"] >= 1 and gpu["name"] in environment["gpu_models"]
    assert environment["cuda_version"] and environment["device"] == "cuda:0"
    (device,) = run.query("SELECT DISTINCT device FROM python.torch_trace WHERE stage = 'forward'")
    assert device["device"] == "cuda:0"
    # Device times of a step's parts lie within the step, and a module's within its parent's.
    wrong = "device_forward_time + device_backward_time + device_optimizer_time > device_duration * 1.001"
    assert run.query(f"SELECT COUNT(*) AS n FROM python.steps WHERE {wrong}") == [{"n": 0}]
    wrong = "gpu_idle_max > device_duration * 1.001 OR gpu_idle_max < 0"
    assert run.query(f"SELECT COUNT(*) AS n FROM python.steps WHERE {wrong}") == [{"n": 0}]


#: Runs a program, and writes what torch's own summary of a capture's profile says: calls, floating-point operations and microseconds,
#: of operators on the host and on the device with and without what is within, and of what ran on the device.
SUMMARY = """
import json, runpy, sys
from torch.autograd import DeviceType
from torch.profiler import _KinetoProfile
written, out = _KinetoProfile.export_chrome_trace, sys.argv.pop(1)
def export(self, path, *more):
    written(self, path, *more)
    said = {"operators": {}, "activities": {}}
    for event in self.key_averages():
        if event.is_user_annotation:
            continue
        device = [event.self_device_time_total, event.device_time_total]
        if event.device_type == DeviceType.CPU:
            said["operators"][event.key] = [event.count, event.flops, event.self_cpu_time_total, event.cpu_time_total, *device]
        else:
            said["activities"][event.key] = [event.count, event.self_device_time_total]
    with open(out, "w") as file:
        json.dump(said, file)
_KinetoProfile.export_chrome_trace = export
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_capture_has_the_figures_of_torch_s_own_summary(home: Home, tmp_path: pathlib.Path) -> None:
    script, summary = tmp_path / "summary.py", tmp_path / "summary.json"
    script.write_text(SUMMARY)
    run = home.train(sys.executable, str(script), str(summary), TRAINING, "eager", "100000000")
    run.wait_for_step(100)
    done = home.probe("gpt", "capture", "--steps", "5", "--with", "modules,flops")
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    said = json.loads(summary.read_text())
    rows = run.query(
        "SELECT name, COUNT(*) AS calls, SUM(flops) AS flops, SUM(self_duration) * 1e6 AS own, SUM(duration) * 1e6 AS total, "
        "SUM(device_self_duration) * 1e6 AS device_own, SUM(device_duration) * 1e6 AS device_total "
        "FROM python.operators WHERE kind = 'operator' GROUP BY name"
    )
    ours = {row["name"]: row for row in rows}
    # Calls of the driver are rows of gpu.launches, and ranges of modules are no operators.
    of_others = (
        "cuda",
        "cu",
        "probe_agent.module: ",
        "Activity Buffer",
        "Buffer Flush",
        "Lazy Function",
        "Runtime Triggered",
    )
    assert not [name for name in said["operators"] if name not in ours and not name.startswith(of_others)]
    for name, row in ours.items():
        calls, flops, *theirs = said["operators"][name]
        assert row["calls"] == calls, name
        assert row["flops"] is None or row["flops"] == flops, name
        mine = [row["own"], row["total"], row["device_own"], row["device_total"]]
        assert mine == pytest.approx(theirs, rel=0.01, abs=calls * 0.01), name
    rows = run.query(
        "SELECT name, COUNT(*) AS calls, SUM(duration) * 1e6 AS total FROM gpu.kernels WHERE kind <> 'sync' GROUP BY name"
    )
    mine = {row["name"]: (row["calls"], row["total"]) for row in rows}
    assert mine.keys() == said["activities"].keys()
    for name, (calls, total) in said["activities"].items():
        assert mine[name][0] == calls and mine[name][1] == pytest.approx(total, rel=0.01, abs=calls * 0.01), name
    # Each has its step and the operator that launched it, and operators of forward and backward have their module.
    (named,) = run.query(
        "SELECT SUM(duration) FILTER (WHERE operator IS NOT NULL AND step IS NOT NULL) / SUM(duration) AS share "
        "FROM gpu.kernels WHERE kind = 'kernel'"
    )
    assert named["share"] >= 0.99, named
    rows = run.query(
        "SELECT stage, SUM(device_self_duration) FILTER (WHERE module IS NOT NULL) / SUM(device_self_duration) AS share "
        "FROM python.operators WHERE kind = 'operator' AND stage IN ('forward', 'backward') GROUP BY stage"
    )
    shares = {row["stage"]: row["share"] for row in rows}
    assert shares["forward"] >= 0.99 and shares["backward"] >= 0.97, shares
    assert ours["aten::addmm"]["flops"] and ours["aten::mm"]["flops"]
    rows = run.query(
        "SELECT name, achieved_tflops, peak_tflops, percent, bound FROM gpu.roofline ORDER BY seconds DESC"
    )
    print(shares, *rows, sep="\n")
    assert {row["name"] for row in rows} >= {"aten::addmm", "aten::mm"}
    assert all(0 < row["achieved_tflops"] and (row["percent"] is None or row["percent"] < 105) for row in rows), rows


def test_a_snapshot_has_what_torch_says_is_allocated(home: Home, training: Run) -> None:
    done = home.probe("gpt", "capture", "--memory-history", "2")
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    (rows,) = training.query(
        "SELECT SUM(size) FILTER (WHERE state = 'active_allocated') AS allocated, COUNT(*) AS blocks FROM gpu.memory_blocks"
    )
    asked = training.eval("import torch; torch.cuda.memory_allocated()", "--at", "step")
    assert asked.returncode == 0, asked.stderr
    # Between two steps the same is allocated.
    assert rows["allocated"] == pytest.approx(int(asked.stdout.strip().splitlines()[-1]), rel=0.01), rows
    lines = training.query(
        "SELECT file, COUNT(*) AS n FROM python.memory_events WHERE action = 'alloc' GROUP BY file ORDER BY n DESC"
    )
    assert any(row["file"] and row["file"].endswith("cuda_training.py") for row in lines), lines


def test_a_training_can_be_attached_to_and_left(home: Home) -> None:
    environment = home.environment(**RANK)
    output = open(home.directory / "out", "w")
    command = [sys.executable, TRAINING, "eager", "100000000"]
    with subprocess.Popen(command, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL) as child:
        try:
            for number in range(3):
                name = f"attached{number}"
                wait_for("something to attach to", lambda name=name: attached(home, child.pid, name))
                wait_for("device times", lambda name=name: home.ask(name, TIMED))
                left = home.probe("detach", str(child.pid))
                assert left.returncode == 0, (number, left.stderr)
                assert child.poll() is None, (home.directory / "out").read_text()
        finally:
            child.kill()


#: Whether a module's call has a device time.
TIMED = "SELECT 1 FROM python.torch_trace WHERE stage = 'forward' AND total_duration IS NOT NULL LIMIT 1"


def attached(home: Home, pid: int, name: str) -> bool:
    """Whether it could be attached to; a program that has not loaded torch yet can't."""
    done = home.probe("attach", str(pid), "--name", name)
    assert os.path.exists(f"/proc/{pid}"), done.stderr
    Home.last_answer = done.stderr
    return done.returncode == 0


def test_a_failed_assertion_on_the_device_is_accounted_for(home: Home) -> None:
    run = home.train(sys.executable, str(SCRIPTS / "cuda_ends.py"), "assert", **RANK)
    assert run.process.wait(PATIENCE) == 1, run.errors
    assert "device-side assert" in run.errors
    (raised,) = home.query("gpt@1", "SELECT exception, message, out_of_memory FROM python.exceptions WHERE uncaught")
    assert "device-side assert" in raised["message"] and not raised["out_of_memory"]
    (steps,) = home.query("gpt@1", "SELECT COUNT(*) AS n FROM python.steps")
    assert steps["n"] >= 20
    page = home.probe("gpt@1", "crash")
    assert page.returncode == 0 and "device-side assert" in page.stdout, page.stdout + page.stderr


def test_a_device_without_memory_left_is_accounted_for(home: Home) -> None:
    run = home.train(sys.executable, str(SCRIPTS / "cuda_ends.py"), "memory", **RANK)
    assert run.process.wait(PATIENCE) == 1, run.errors
    sql = "SELECT exception, out_of_memory, memory FROM python.exceptions WHERE out_of_memory"
    raised = home.query("gpt@1", sql)
    assert raised and "OutOfMemoryError" in raised[0]["exception"], raised
    assert "PyTorch CUDA memory summary" in raised[0]["memory"]
    page = home.probe("gpt@1", "crash")
    assert page.returncode == 0 and "memory" in page.stdout, page.stdout + page.stderr


def test_a_kernel_that_never_ends_is_told_from_a_slow_step(home: Home) -> None:
    run = home.train(sys.executable, str(SCRIPTS / "cuda_ends.py"), "stuck", PROBE_HANG_AFTER="3s", **RANK)
    run.wait_for_step(20)
    found = wait_for("the finding", lambda: run.query("SELECT message FROM probe.events WHERE kind = 'hang'"))
    page = home.probe("gpt", "hang")
    print(found, page.stdout)
    assert "cuda" in page.stdout.lower(), page.stdout
    stack = home.probe("gpt", "stack")
    assert "cuda_ends.py" in stack.stdout, stack.stdout + stack.stderr
    run.process.terminate()
    run.process.wait(PATIENCE)
