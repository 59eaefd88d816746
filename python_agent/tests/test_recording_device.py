"""Device time. There is no device here: a small library with the symbols of CUDA's driver stands in, whose clock goes on
by one millisecond with every event, so that every time is known beforehand. Modules are on torch's meta device."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recording_support import HOOKS_OF_GROUPS, in_interpreter
from torch import nn

HERE = Path(__file__).resolve()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    source = HERE.with_name("fake_cuda.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, source], check=True)
    return library


@pytest.fixture
def with_driver(driver: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LD_PRELOAD", str(driver))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield


ON_DEVICE = (
    *("device_duration", "device_forward_time", "device_backward_time", "device_optimizer_time", "gpu_idle_max"),
)


class Pair(nn.Module):
    """Two layers and an operation of its own between them."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, device=device)
        self.second = nn.Linear(4, 4, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def recorded(steps: int = 2, device: str = "meta", capture: str = "") -> Any:
    """Rows of `steps` steps, in a process with the driver; how many events were recorded."""
    import probe_agent.torch as agent
    from probe_agent import _native as native

    cuda = ctypes.CDLL("libcuda.so.1")
    agent.install()
    native.analyse()  # The background thread's work: it finds the driver, and makes events.
    native.take_rows()
    model = Pair(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        os.environ["FAKE_CUDA"] = capture if step == 1 else os.environ.get("FAKE_CUDA_ALWAYS", "")
        optimizer.zero_grad()
        model(torch.ones(2, 4, device=device)).sum().backward()
        optimizer.step()
        if step % 10 == 9:
            native.analyse()
    began = time.monotonic()
    taken = native.take_rows(False)
    rows, ended = taken["python.torch_trace"], taken["python.steps"]
    held_back = 8 * steps - len(rows)
    if "FAKE_CUDA_BEHIND" in os.environ:
        os.unlink(os.environ["FAKE_CUDA_BEHIND"])
    while len(rows) < 8 * steps and time.monotonic() < began + 60:
        time.sleep(0.05)
        native.analyse()
        taken = native.take_rows(False)
        rows += taken["python.torch_trace"]
        ended += taken["python.steps"]
    agent.uninstall()
    names = ("step", "stage", "module", "duration", "total_duration")
    return {
        "rows": [{name: row[name] for name in names} | {"on_host": row["host_duration"] > 0} for row in rows],
        "steps": [{name: row[name] for name in (*ON_DEVICE, "step", "duration")} for row in ended],
        "events": cuda.fake_cuda_recorded(), "held_back": held_back, "layer": native.layers().get("device_time"),
    }  # fmt: skip


def held(steps: int) -> Any:
    """In each step the device is held for a while, with the model's call in its queue; then it has nothing to do for a
    while. The clock is the host's, so both are known at least."""
    import probe_agent.torch as agent
    from probe_agent import _native as native

    cuda = ctypes.CDLL("libcuda.so.1")
    agent.install()
    native.analyse()
    native.take_rows()
    model = Pair("meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told: list[dict[str, float]] = []
    for step in range(steps):
        if step:
            cuda.fake_cuda_hold()
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4, device="meta")).sum()
        began = time.monotonic()
        while time.monotonic() < began + 0.05:
            pass
        waited = time.monotonic() - began
        cuda.fake_cuda_let_go()
        began = time.monotonic()
        while time.monotonic() < began + 0.03:
            pass
        idle = time.monotonic() - began
        loss.backward()
        optimizer.step()
        told.append({"waited": waited, "idle": idle})
    rows: list[dict[str, Any]] = []
    began = time.monotonic()
    while len(rows) < steps and time.monotonic() < began + 60:
        native.analyse()
        rows += native.take_rows(False)["python.steps"]
    agent.uninstall()
    return [row | told[row["step"]] for row in rows]


def collectives(meeting: str, returned: str) -> Any:
    """Rows of three operations of a group that says it is NCCL's, in order; how many events were recorded. Synchronous ones
    return a work that is waited for, or `nothing` and have waited, as newer releases of torch have it of NCCL."""
    import probe_agent.torch as agent
    import torch.distributed as dist
    from probe_agent import _native as native
    from probe_agent.torch import collectives as layer

    # gloo instead of NCCL: what hooks, waits and events do with an operation is the same, and it works without a device.
    layer._backends = lambda text: [("", "nccl")]
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    cuda = ctypes.CDLL("libcuda.so.1")
    if returned == "nothing":
        return_nothing()
    agent.install()
    native.analyse()
    native.take_rows()
    os.environ["FAKE_CUDA"] = os.environ.get("FAKE_CUDA_ALWAYS", "")
    dist.all_reduce(torch.ones(250))
    work = dist.all_reduce(torch.ones(500), async_op=True)
    work.wait()
    dist.barrier()
    rows = native.take_rows()["python.nccl_trace"]
    agent.uninstall()
    dist.destroy_process_group()
    names = ("operation_type", "status", "duration_ms", "algbw_gbps")
    rows.sort(key=lambda row: row["seq"])
    return {"rows": [[row[name] for name in names] for row in rows], "events": cuda.fake_cuda_recorded()}


def return_nothing() -> None:
    """Has synchronous sums of process groups return no work. A barrier returns one also where others don't."""
    from torch.distributed import ProcessGroup, Work

    wait, issue, register = Work.wait, ProcessGroup.allreduce, getattr(ProcessGroup, "register_post_hook", None)

    def allreduce(self: Any, tensors: Any, options: Any) -> Any:
        work = issue(self, tensors, options)
        return work if options.asyncOp else (wait(work), None)[1]

    def register_post_hook(self: Any, number: int, hook: Any) -> None:
        def called(args: Any) -> None:
            has_work = args.async_op or args.name.name != "ALLREDUCE"
            hook(args if has_work else SimpleNamespace(work=None))

        assert register is not None
        register(self, number, called)

    ProcessGroup.allreduce = allreduce  # type: ignore[method-assign]
    if register is not None:
        ProcessGroup.register_post_hook = register_post_hook  # type: ignore[method-assign]


def times(rows: list[dict[str, Any]], step: int) -> dict[tuple[str, str | None], tuple[float | None, float | None]]:
    def milliseconds(seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds * 1e3, 3)

    of_step = [row for row in rows if row["step"] == step]
    return {
        (row["stage"], row["module"]): (milliseconds(row["duration"]), milliseconds(row["total_duration"]))
        for row in of_step
    }


def test_devices_have_their_own_times(with_driver: None) -> None:
    told = in_interpreter(recorded)
    # Six records of module calls have an event each, at 0 to 5 ms: Pair [0, 5] holds first [1, 2] and second [3, 4].
    step = times(told["rows"], 1)
    forward = {module: both for (stage, module), both in step.items() if stage == "forward"}
    assert forward == {"Pair": (3.0, 5.0), "first": (1.0, 1.0), "second": (1.0, 1.0)}
    # The optimizer's step is from its event to its end's.
    assert step["step", "SGD"] == (1.0, 1.0)
    # Each node has its events, and what lies between two of them goes with the first: from the first node's to the last
    # one's all time belongs to a module. The loss belongs to no single module: NULL.
    backward = {module: both for (stage, module), both in step.items() if stage == "backward"}
    assert set(backward) == {"Pair", "first", "second", None}
    assert all(own is not None and own >= 1.0 for own, _ in backward.values())
    whole = sum(own for own, _ in backward.values())
    assert backward["Pair"][1] == whole - backward[None][0]
    assert all(row["on_host"] for row in told["rows"]), "the host's times are there as well"
    # A step's parts are those of its modules; what they leave of the whole is between them.
    parts = {name: round(told["steps"][1][name] * 1e3, 3) for name in ON_DEVICE}
    assert (parts["device_forward_time"], parts["device_optimizer_time"]) == (5.0, 1.0)
    assert parts["device_backward_time"] == whole
    # The end of the step before, then forward, backward and the optimizer, each an event after the one before it.
    assert parts["device_duration"] == 1.0 + 5.0 + 1.0 + whole + 1.0 + 1.0
    assert told["steps"][0]["device_duration"] is None, "nobody knows when the device began with the first step"
    assert 0.0 <= told["steps"][1]["gpu_idle_max"] <= told["steps"][1]["duration"]
    # No event is lost: the pool has a thousand, and each is used again and again.
    many = in_interpreter(recorded, arguments=(200,))
    assert many["events"] > 3000
    assert all(row["duration"] is not None for row in many["rows"])


def test_modules_on_the_host_have_the_hosts_times(with_driver: None) -> None:
    told = in_interpreter(recorded, arguments=(2, "cpu"))
    for (stage, module), (own, _) in times(told["rows"], 1).items():
        assert own is not None and own != 1.0, (stage, module)
    assert [step[name] for step in told["steps"] for name in ON_DEVICE] == [None] * 10


def test_what_waits_for_a_device_is_no_gap(with_driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA_CLOCK", "host")
    steps = in_interpreter(held, arguments=(6,))
    assert [row["step"] for row in steps] == list(range(6))
    # In the first step the device was not held: its queue was empty all along.
    assert steps[0]["gpu_idle_max"] > steps[0]["waited"] + steps[0]["idle"]
    for row in steps[1:]:
        # The clock is read before the event is recorded. Where the thread loses its processor between the two, the event seems to
        # have waited for as long.
        assert row["idle"] <= row["gpu_idle_max"] + (row["run_delay"] or 0.0), row
        # The clocks of the host and of the device differ by at most 1/5000 of the time.
        assert row["gpu_idle_max"] <= row["duration"] * (1 + 1 / 5000) - row["waited"] + 1e-4, row
        assert row["device_duration"] >= row["waited"] + row["idle"] - 1e-4


def test_rows_wait_for_a_device_that_is_behind(
    with_driver: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "behind").touch()
    monkeypatch.setenv("FAKE_CUDA_BEHIND", str(tmp_path / "behind"))
    told = in_interpreter(recorded)
    assert told["held_back"] == 16
    assert times(told["rows"], 1)["forward", "Pair"] == (3.0, 5.0)


def test_rows_go_on_without_a_device_that_has_stopped(with_driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA_ALWAYS", "never")
    told = in_interpreter(recorded, arguments=(2, "meta", "never"))
    assert len(told["rows"]) == 16
    assert set(times(told["rows"], 1).values()) == {(None, None)}


@pytest.mark.parametrize("mode", ["capturing", "broken"])
def test_what_is_not_known_is_null(with_driver: None, mode: str) -> None:
    """In step 1 the stream is captured into a graph, or the driver fails; the others have times."""
    told = in_interpreter(recorded, arguments=(3, "meta", mode))
    if mode == "capturing":
        assert set(times(told["rows"], 1).values()) == {(None, None)}
        assert [told["steps"][1][name] for name in ON_DEVICE] == [None] * 5
        assert told["steps"][2]["device_forward_time"] == pytest.approx(5e-3)
        assert times(told["rows"], 2)["forward", "Pair"] == (3.0, 5.0)
    assert len(told["rows"]) == 24


def test_nothing_is_recorded_before_cuda_is_in_use(
    with_driver: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "not yet").touch()
    monkeypatch.setenv("FAKE_CUDA_NOT_YET", str(tmp_path / "not yet"))
    told = in_interpreter(recorded)
    assert told["events"] == 0
    assert set(times(told["rows"], 1).values()) == {(None, None)}
    assert told["layer"] == "off", "it was taken out with the others"


def test_the_layer_can_be_off(with_driver: None) -> None:
    told = in_interpreter(recorded, "-device_time")
    assert told["events"] == 0
    assert [told["steps"][1][name] for name in ON_DEVICE] == [None] * 5
    assert set(times(told["rows"], 1).values()) == {(None, None)}


@pytest.mark.parametrize("returned", ["a work", "nothing"])
@pytest.mark.parametrize("mechanism", ["pg_hooks", pytest.param("patched-functions", marks=pytest.mark.extended)])
def test_what_a_stream_waits_for_has_the_devices_time(
    with_driver: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mechanism: str, returned: str
) -> None:
    """NCCL's operations: synchronous ones have an event before and one after, and what lies between is how long they took."""
    if mechanism == "pg_hooks" and not HOOKS_OF_GROUPS:
        pytest.skip("this torch's process groups have no hooks")
    # Without RecordFunction: it tells when gloo is done, which NCCL's ranges don't.
    layers = f"-backward,optimizer=step-hooks,collectives={mechanism}"
    told = in_interpreter(collectives, layers, arguments=(str(tmp_path / "meeting"), returned))
    waited = ["completed", pytest.approx(1.0, rel=1e-5)]  # as exact as the driver says it, in 32 bits
    assert told["rows"] == [
        ["all_reduce", *waited, pytest.approx(1000 / 1e-3 / 1e9, rel=1e-5)],
        ["all_reduce", "issued", None, None],
        ["barrier", *waited, None],
    ]
    assert told["events"] == 4
    # Unknown: the device has not come so far, or can't be asked, or its stream is being captured.
    for mode in ("never", "broken", "capturing"):
        monkeypatch.setenv("FAKE_CUDA_ALWAYS", mode)
        told = in_interpreter(collectives, layers, arguments=(str(tmp_path / mode), returned))
        assert [row[1:] for row in told["rows"]] == [["issued", None, None]] * 3, mode
