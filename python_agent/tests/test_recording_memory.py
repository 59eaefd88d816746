"""Memory of devices and host, and the process as the operating system sees it."""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from typing import Any

import torch
from recording_support import Net, Recorder, in_process, train
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


def on_fake_devices(initialised: bool) -> dict[str, Any]:
    """Trains beside an allocator of two devices that says what it is told to."""
    import probe_agent.torch as agent

    asked: list[int] = []

    def statistics(device: int) -> dict[str, Any]:
        asked.append(device)
        base = 0 if device == 1 else 1_000_000 * (1 + len(asked))
        size = {"all": {"current": base, "peak": 2 * base}}
        names = ["allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes"]
        return {**dict.fromkeys(names, size), "num_alloc_retries": 3, "num_ooms": 1}

    torch._C._cuda_memoryStats = statistics
    torch.version.cuda = "13.0"
    torch.cuda._initialized = initialised
    torch.cuda.device_count = lambda: 2
    agent.install()
    recorder = Recorder()
    model = Net()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 32), 3)
    torch._C._cuda_memoryStats = None
    rows = recorder.take()
    return {
        "memory": [row for row in rows["python.memory"] if row["device"] != "cpu"],
        "steps": rows["python.steps"],
        "asked": asked,
        "problem": recorder.native.problem(),
        "initialised": torch.cuda._initialized,
    }


def test_devices_in_use_have_a_row_a_step() -> None:
    # The other layer that asks devices asks for more than these can say.
    found = in_process(on_fake_devices, "-environment", arguments=(True,))
    assert found["problem"] == ""
    # The second device holds nothing, and is not asked again.
    assert [row["device"] for row in found["memory"]] == ["cuda:0"] * 3
    assert found["asked"] == [0, 1, 0, 0, 0]
    first = found["steps"][0]["step"]
    for place, row in enumerate(found["memory"]):
        megabytes = [4.0, 5.0, 6.0][place]
        assert row["step"] == first + place
        assert row["allocated"] == row["reserved"] == row["active"] == row["inactive"] == megabytes
        assert row["max_allocated"] == row["max_reserved"] == 2 * megabytes
        assert (row["retries"], row["ooms"], row["rss"], row["children"]) == (3, 1, None, None)
        assert found["steps"][place]["max_allocated"] == 2 * megabytes


def test_cuda_is_not_initialised_and_not_asked() -> None:
    found = in_process(on_fake_devices, arguments=(False,))
    assert found["asked"] == [] and found["memory"] == [] and found["initialised"] is False
    assert [step["max_allocated"] for step in found["steps"]] == [None] * 3


def a_second_of_training(workers: int) -> dict[str, Any]:
    """Trains for some seconds with a loader that keeps its workers, analysing as the background thread does."""
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 32), torch.zeros(64))
    loader = DataLoader(data, batch_size=8, num_workers=workers, persistent_workers=workers > 0)
    ballast, read = None, 0
    began = time.monotonic()
    open_before = len(os.listdir("/proc/self/fd"))
    files = [open(os.devnull) for _ in range(20)]
    rows: dict[str, list[Any]] = defaultdict(list)
    off = recorder.native.layers()["process"] == "off"
    # Until it was read before the ballast and with it; on a busy machine a round may take more than a second.
    while read < 3 and time.monotonic() < began + (2.5 if off else 60):
        if ballast is None and read >= 1:
            ballast = torch.ones(50_000_000)  # 200 MB, touched
        for x, _target in loader:
            train(model, optimizer, x, 1)
        for table, taken in recorder.native.take_rows(False).items():
            rows[table] += [] if table == "probe.drops" else taken
        read = len(rows["process.metrics"])
    for table, taken in recorder.take().items():
        rows[table] += [] if table == "probe.drops" else taken
    for file in files:
        file.close()
    return {
        "memory": [row for row in rows["python.memory"] if row["device"] == "cpu"],
        "metrics": rows["process.metrics"],
        "steps": rows["python.steps"],
        "fds": open_before,
        "cpu": resource.getrusage(resource.RUSAGE_SELF).ru_utime,
        "layers": recorder.native.layers(),
    }


def test_the_host_s_memory_and_that_of_workers() -> None:
    found = in_process(a_second_of_training, arguments=(2,))
    memory = found["memory"]
    assert len(memory) >= 3
    assert all(row["allocated"] is row["ooms"] is None for row in memory)
    assert all(0 < row["rss"] <= row["max_rss"] * 1.05 for row in memory)
    # What was allocated on the way is seen, and only from there on.
    assert 150 < memory[-1]["rss"] - memory[0]["rss"] < 1000
    steps = [row["step"] for row in memory]
    assert steps == sorted(steps) and steps[-1] <= found["steps"][-1]["step"] + 1
    # Two workers, whose memory this process's does not contain. Not every kernel tells.
    told = [row for row in memory if row["children"] is not None]
    assert all(row["children_rss"] > 0 for row in told if row["children"] > 0)
    if os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        assert max(row["children"] for row in told) == 2


def test_the_process_is_measured_once_a_second() -> None:
    found = in_process(a_second_of_training, arguments=(0,))
    # The very first row, which has no rates, was there before training.
    first, *rest = found["metrics"]
    # A second lies between two of them, which the time of day need not say so exactly.
    times = [row["ts"] for row in found["metrics"]]
    assert len(times) >= 3 and all(later - earlier > 0.9e9 for earlier, later in zip(times, times[1:]))
    assert max(row["user_percent"] for row in rest) > 10
    # 200 MB are 48 thousand pages; fewer where the system has huge ones.
    assert max(row["minor_faults"] for row in rest) > 20
    assert all(0 < row["cpu_user"] <= found["cpu"] for row in found["metrics"])
    assert rest[-1]["cpu_user"] > first["cpu_user"] and rest[-1]["threads"] >= 1
    assert rest[-1]["open_fds"] >= found["fds"] + 15
    assert found["layers"]["process"] == "proc" and found["layers"]["memory"] == "statistics"


def test_switched_off_there_is_nothing() -> None:
    found = in_process(a_second_of_training, layers="-memory,-process", arguments=(0,))
    assert found["memory"] == found["metrics"] == [] and found["steps"]
    assert found["layers"]["process"] == found["layers"]["memory"] == "off"
