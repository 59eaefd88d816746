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


def fake_cuda(statistics: Any, initialised: bool) -> None:
    """An allocator of two devices with the results of `statistics`; the calling thread's is the first."""
    torch._C._cuda_memoryStats = statistics
    torch._C._cuda_getDevice = lambda: 0
    torch.version.cuda = "13.0"
    torch.cuda._initialized = initialised
    torch.cuda.device_count = lambda: 2


def on_fake_devices(initialised: bool) -> dict[str, Any]:
    """Trains beside an allocator of two devices with given statistics."""
    import probe_agent.torch as agent

    asked: list[int] = []

    def statistics(device: int) -> dict[str, Any]:
        asked.append(device)
        base = 0 if device == 1 else 1_000_000 * (1 + len(asked))
        size = {"all": {"current": base, "peak": 2 * base}}
        names = ["allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes"]
        counts = {"num_alloc_retries": 3, "num_ooms": 1, "num_device_alloc": 7, "num_device_free": 2}
        return {**dict.fromkeys(names, size), **counts}

    fake_cuda(statistics, initialised)
    # Asked at modules it would be asked more often than a step.
    torch._C._cuda_getDevice = None
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
    for index, row in enumerate(found["memory"]):
        megabytes = [4.0, 5.0, 6.0][index]
        assert row["step"] == first + index
        assert row["allocated"] == row["reserved"] == row["active"] == row["inactive"] == megabytes
        assert row["max_allocated"] == row["max_reserved"] == 2 * megabytes
        assert (row["retries"], row["ooms"], row["rss"], row["children"]) == (3, 1, None, None)
        assert (row["device_allocs"], row["device_frees"]) == (7, 2)
        assert found["steps"][index]["max_allocated"] == 2 * megabytes


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
    while read < 4 and time.monotonic() < began + (2.5 if off else 60):
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
    # Memory that was allocated meanwhile is seen, and only from then on.
    assert 150 < memory[-1]["rss"] - memory[0]["rss"] < 1000
    steps = [row["step"] for row in memory]
    assert steps == sorted(steps) and steps[-1] <= found["steps"][-1]["step"] + 1
    # Two workers, whose memory this process's does not contain. Not every kernel tells.
    told = [row for row in memory if row["children"] is not None]
    assert all(row["children_rss"] > 0 for row in told if row["children"] > 0)
    if os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        assert max(row["children"] for row in told) == 2
        # torch calls them workers from 2.6 on.
        if hasattr(torch.multiprocessing, "_set_thread_name"):
            workers = [row for row in found["metrics"] if row["data_workers"] == 2]
            assert any(row["data_workers_percent"] and row["data_workers_read_bytes"] for row in workers), workers


def test_the_process_is_measured_once_a_second() -> None:
    found = in_process(a_second_of_training, arguments=(0,))
    # The very first row, which has no rates, was there before training.
    first, *rest = found["metrics"]
    # A second lies between two of them, which the time of day need not say so exactly.
    times = [row["ts"] for row in found["metrics"]]
    # A row's time is read after what it says, so where a busy machine delays one, the next follows sooner.
    assert len(times) >= 4 and times[-1] - times[0] > (len(times) - 2) * 0.99e9
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


class Held:
    """An allocator whose bytes modules take and give back by hand."""

    def __init__(self) -> None:
        self.now, self.peak, self.asked = 1_000_000, 1_000_000, 0

    def take(self, megabytes: float) -> None:
        self.now += int(megabytes * 1e6)
        self.peak = max(self.peak, self.now)

    def statistics(self, device: int) -> dict[str, Any]:
        self.asked += 1
        both = {"all": {"current": self.now, "peak": self.peak}}
        reserved = {"all": {"current": 2 * self.now, "peak": 2 * self.peak}}
        return {"allocated_bytes": both, "reserved_bytes": reserved, "num_alloc_retries": 0, "num_ooms": 0}


class Taking(torch.nn.Module):
    """Takes memory before and after its child, which takes its own."""

    def __init__(
        self, held: Held, megabytes: float, child: torch.nn.Module | None = None, raises: bool = False
    ) -> None:
        super().__init__()
        self.held, self.megabytes, self.child, self.raises = held, megabytes, child, raises

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.held.take(self.megabytes)
        if self.raises:
            raise ArithmeticError("of the test's own")
        try:
            x = x if self.child is None else self.child(x)
        except ArithmeticError:
            pass
        self.held.take(self.megabytes)
        return x * 1.0


def takes_memory(case: str, steps: int) -> dict[str, Any]:
    """Trains on a fake device, with modules that take what they are told to; nested: 1 MB twice, around 2, around 4."""
    import probe_agent.torch as agent

    held = Held()
    fake_cuda(held.statistics, True)
    agent.install()
    recorder = Recorder()
    inner = Taking(held, 4, raises=case == "raises")
    model = Taking(held, 1, Taking(held, 2, inner))
    if case == "elsewhere":
        # The model's own parameter lies on no device of CUDA's.
        model.weight = torch.nn.Parameter(torch.ones(1))
    weight = torch.nn.Parameter(torch.ones(1))

    class Growing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            held.take(16)
            return super().step(closure)

    optimizer = Growing([weight], lr=0.1)
    for _ in range(steps):
        model(torch.ones(2) * weight).sum().backward()
        optimizer.step()
        held.take(-26 if case == "raises" else -30)
    rows = recorder.take()
    return {
        "rows": rows["python.torch_trace"],
        "asked": held.asked,
        "problem": recorder.native.problem(),
        "drops": rows["probe.drops"],
    }


def measured(found: dict[str, Any], step: int) -> dict[tuple[str, str], tuple[Any, ...]]:
    columns = ("allocated", "allocated_delta", "max_allocated", "reserved")
    rows = [row for row in found["rows"] if row["step"] == step]
    return {(row["module"], row["stage"]): tuple(row[name] for name in columns) for row in rows}


def test_what_modules_and_optimizers_keep_is_measured_in_one_of_64_steps() -> None:
    found = in_process(takes_memory, "-environment", arguments=("nested", 129))
    assert found["problem"] == "" and not found["drops"]
    for step in (64, 128):
        rows = measured(found, step)
        # Their own, without that of those within: it adds up to what the outermost one changed.
        assert rows["Taking", "forward"] == (15.0, 2.0, 31.0, 30.0)
        assert rows["child", "forward"] == (14.0, 4.0, 31.0, 28.0)
        assert rows["child.child", "forward"] == (12.0, 8.0, 31.0, 24.0)
        assert rows["Growing", "step"] == (31.0, 16.0, 31.0, 62.0)
        assert all(values == (None,) * 4 for (_, stage), values in rows.items() if stage == "backward")
    others = [row for row in found["rows"] if row["step"] not in (64, 128)]
    assert others and all(row["allocated"] is row["allocated_delta"] is row["reserved"] is None for row in others)
    # Two for a call and one before the optimizer, in two steps; two devices a step; and what devices are in use.
    assert found["asked"] == 2 * 7 + 2 * 129 + 2 * len(range(0, 129, 64))


def test_a_change_that_is_not_known_is_nobody_s() -> None:
    found = in_process(takes_memory, "-environment", arguments=("raises", 64))
    rows = measured(found, 64)
    # The innermost module raised: its end was not sampled, so its change can't be subtracted from the outer modules'.
    assert rows["child.child", "forward"] == (None,) * 4
    assert rows["child", "forward"] == (10.0, None, 27.0, 20.0)
    assert rows["Taking", "forward"] == (11.0, 2.0, 27.0, 22.0)
    assert found["problem"] == ""


def test_of_a_module_on_another_device_nothing_is_said() -> None:
    found = in_process(takes_memory, "-environment", arguments=("elsewhere", 64))
    rows = measured(found, 64)
    # Those without parameters are where the model is.
    assert rows["Taking", "forward"] == rows["child", "forward"] == (None,) * 4
    assert rows["Growing", "step"][1] == 16.0


class Answer(dict):  # type: ignore[type-arg]
    """An answer of an allocator, counted while it lives."""

    alive = most = 0

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        Answer.alive += 1
        Answer.most = max(Answer.most, Answer.alive)

    def __del__(self) -> None:
        Answer.alive -= 1


def answers_alive() -> dict[str, Any]:
    """Trains a model of many modules; how many answers of the allocator there were, and at once."""
    import probe_agent.torch as agent

    held = Held()
    fake_cuda(lambda device: Answer(held.statistics(device)), True)
    agent.install()
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(20)))
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(1, 2), 66)
    return {"asked": held.asked, "most": Answer.most}


def test_what_an_allocator_said_is_let_go_of_at_once() -> None:
    found = in_process(answers_alive, "-environment")
    assert found["asked"] > 40 and found["most"] <= 2


def an_allocator_that_fails() -> dict[str, Any]:
    """Trains where the allocator can't be asked at modules."""
    import probe_agent.torch as agent

    held = Held()
    fake_cuda(held.statistics, True)

    def no_device() -> int:
        raise RuntimeError("there is none")

    torch._C._cuda_getDevice = no_device
    agent.install()
    recorder = Recorder()
    model = Net()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 32), 66)
    return {"rows": recorder.take()["python.torch_trace"], "problem": recorder.native.problem()}


def test_an_allocator_that_can_t_be_asked_is_left_alone() -> None:
    found = in_process(an_allocator_that_fails, "-environment")
    assert "memory of modules: there is none" in found["problem"]
    forward = [row for row in found["rows"] if row["stage"] == "forward"]
    assert forward and all(row["allocated"] is None for row in forward)
