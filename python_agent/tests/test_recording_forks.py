"""Forks of a training process: children that train, make and drop modules, and never wait for a lock of ours."""

from __future__ import annotations

import os
import pathlib
import statistics
import subprocess
import threading
import time
from typing import Any

import pytest
import torch
from recording_support import Net, in_process, train
from torch import nn

PATIENCE = 60.0


def _child_work(model: nn.Module) -> None:
    """What a child may do that involves the agent: load a library, train, define, make and drop modules, ask for the status."""
    import ctypes

    from probe_agent import _native

    # The background thread searches for libcuda, and the C library's loader does not survive a fork in the middle of a search.
    with pytest.raises(OSError):
        ctypes.CDLL("libnot-there.so")
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(2, 16), 1)
    for _ in range(3):
        made = type("Made", (Net,), {})(16, 1)
        made(torch.ones(1, 16))
        del made
    assert not _native.is_enabled() and set(_native.layers()) >= {"forward"}
    _native.set_problem(_native.problem())
    _native.set_detail(True)
    _native.mark_step()
    _native.enable(True)
    assert not _native.is_enabled()


def _becomes_an_agent(model: nn.Module, on_another_thread: bool) -> None:
    """What the agent does when a child trains that its parent, which recorded, has forked. The parent's rows are not its own."""
    from probe_agent import _native

    def begin() -> None:
        assert _native.begin_in_child()
        _native.set_enabled(True)

    _native.forked()
    losses = _native.declare_table("mine.losses", [("value", "float")])
    if on_another_thread:  # As `probe attach` does.
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
    else:
        begin()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        train(model, optimizer, torch.ones(2, 16), 1)
    _native.append_row(losses, {"value": 1.5})
    rows = _native.take_rows()
    assert [row["value"] for row in rows["mine.losses"]] == [1.5]
    assert [row["step"] for row in rows["python.steps"]] == [0, 1, 2], rows["python.steps"]
    modules = [row["module"] for row in rows["python.torch_trace"] if row["stage"] == "forward"]
    assert modules.count("Net") == 3 and len(modules) == 3 * 10 and "layers.0.up" in modules, modules
    assert not rows["probe.drops"], rows["probe.drops"]


def _ends_well(child: int) -> bool:
    """Whether the process ends by itself, and with status 0."""
    deadline = time.monotonic() + PATIENCE
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return False
        time.sleep(0.001)


def forking(forks: int) -> dict[str, Any]:
    """Train and fork in turn, while another thread makes rows without a pause."""
    torch.set_num_threads(1)
    import probe_agent.torch

    probe_agent.torch.install()
    from probe_agent import _native

    over = threading.Event()

    def drain() -> None:
        while not over.is_set():
            _native.analyse()

    drainer = threading.Thread(target=drain)
    drainer.start()
    model = Net(16, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    good, waited = 0, []
    for fork in range(forks):
        # Modules that die make the drain ask for names again and again.
        nn.Sequential(nn.Linear(16, 16), nn.ReLU())(torch.ones(1, 16))
        train(model, optimizer, torch.ones(4, 16), 1)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _child_work(model)
                if fork % 2:
                    _becomes_an_agent(model, on_another_thread=fork % 4 == 3)
                status = 0
            finally:
                os._exit(status)
        waited.append(_native.fork_waited())
        good += _ends_well(child)
    over.set()
    drainer.join()
    rows = _native.take_rows()
    return {
        "good": good,
        "waited": waited,
        "steps": [(row["step"], row["micro_steps"]) for row in rows["python.steps"]],
        "forward": sum(row["stage"] == "forward" and row["input_shape"] is None for row in rows["python.torch_trace"]),
        "roots": sum(row["module"] == "Net" and row["stage"] == "forward" for row in rows["python.torch_trace"]),
        "drops": len(rows["probe.drops"]),
    }


@pytest.mark.parametrize("forks", [50, pytest.param(200, marks=pytest.mark.extended)])
def test_children_of_a_busy_process_train_and_end(forks: int) -> None:
    found = in_process(forking, arguments=(forks,))
    assert found["good"] == forks
    # Training's own rows: each step's eleven calls and the two of the modules made along the way, and none of a child.
    assert found["steps"] == [[step, 2] for step in range(forks)]
    assert found["roots"] == forks and found["forward"] == forks * (9 + 2)
    assert found["drops"] == 0
    # Less than a microsecond; the bound is what training would notice. A busy machine may take the processor away once.
    assert statistics.median(found["waited"]) < 0.005


class Trains(torch.utils.data.Dataset):
    """Trains a model of its own in the DataLoader's worker."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, item: int) -> torch.Tensor:
        from probe_agent import _native

        torch.set_num_threads(1)
        model = Net(16, 1)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(2, 16), 1)
        return torch.tensor(float(_native.is_enabled()))


def workers(method: str, persistent: bool) -> dict[str, Any]:
    """Epochs of a DataLoader whose workers train; made anew for each epoch, or kept."""
    torch.set_num_threads(1)
    import probe_agent.torch

    probe_agent.torch.install()
    from probe_agent import _native

    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(
        Trains(), batch_size=2, num_workers=2, multiprocessing_context=method, persistent_workers=persistent,
        timeout=PATIENCE,
    )  # fmt: skip
    enabled = 0.0
    epochs = 10 if method == "fork" else 2
    for _ in range(epochs):
        for batch in loader:
            enabled += batch.sum().item()
            train(model, optimizer, batch[:, None], 1)
    rows = _native.take_rows()
    trace = rows["python.torch_trace"]
    return {
        "epochs": epochs,
        "enabled": enabled,
        "steps": [row["samples"] for row in rows["python.steps"]],
        "waited_for_data": min(row["data_time"] for row in rows["python.steps"]) > 0,
        "modules": sorted({row["module"] for row in trace if row["stage"] == "forward"}),
        "drops": len(rows["probe.drops"]),
    }


@pytest.mark.parametrize(
    ("method", "persistent"),
    [("fork", False), pytest.param("fork", True, marks=pytest.mark.extended), ("spawn", True)],
)
def test_workers_that_train_leave_trainings_rows_alone(method: str, persistent: bool) -> None:
    found = in_process(workers, arguments=(method, persistent))
    assert found["enabled"] == 0
    assert found["steps"] == [2] * 4 * found["epochs"] and found["waited_for_data"]
    assert found["modules"] == ["Linear"] and found["drops"] == 0


def _shared() -> tuple[int, int]:
    """Mappings of the shared memory that rings lie in, and files that it is open as."""
    maps = sum("probe-rings" in line for line in pathlib.Path("/proc/self/maps").read_text().splitlines())
    links = [os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
    return maps, sum("probe-rings" in os.readlink(link) for link in links if os.path.lexists(link))


def a_fork_without_rings() -> dict[str, Any]:
    """Train, fork, train in the child, train on."""
    torch.set_num_threads(1)
    import probe_agent.torch

    probe_agent.torch.install()
    from probe_agent import _native

    model = Net(16, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, torch.ones(2, 16), 2)
    before = _shared()
    child = os.fork()
    if child == 0:
        try:
            assert _shared() == (0, 0)
            _child_work(model)
            _native.fork_waited()
            assert _shared() == (0, 0)
        except BaseException:
            os._exit(1)
        os._exit(0)
    ended = _ends_well(child)
    train(model, optimizer, torch.ones(2, 16), 2)
    steps = [row["step"] for row in _native.take_rows()["python.steps"]]
    return {"before": before, "ended": ended, "steps": steps}


def test_a_forked_child_has_no_ring() -> None:
    seen = in_process(a_fork_without_rings)
    maps, files = seen["before"]
    # A ring a thread that recorded, and the log of names.
    assert maps >= 2 and files == 1
    assert seen["ended"]
    assert seen["steps"] == [0, 1, 2, 3]


#: A library whose fork handler, registered before ours, takes memory in the child: an allocator, gRPC, a driver.
TAKES_MEMORY = """
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
static char *block[3];
static size_t size[3] = {64 << 10, 1 << 20, 4 << 20};
static void child(void) {
    for (int i = 0; i < 3; i++) {
        block[i] = mmap(0, size[i], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(block[i], 42, size[i]);
    }
}
__attribute__((constructor)) static void begin(void) { pthread_atfork(0, 0, child); }
int changed(void) {
    size_t n = 0;
    for (int i = 0; i < 3; i++) for (size_t k = 0; k < size[i]; k++) n += block[i][k] != 42;
    return (int)n;
}
"""


def handlers_of_others(library: str) -> list[int]:
    """In a child, bytes of another library's memory that are not what it wrote; and whether the child trained on."""
    import ctypes

    other = ctypes.CDLL(library)
    torch.set_num_threads(1)
    import probe_agent.torch

    probe_agent.torch.install()
    model = Net(16, 2)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(2, 16), 2)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            changed = other.changed()
            _child_work(model)
            os.write(write, f"{changed} {other.changed()}".encode())
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert _ends_well(child)
    return [int(count) for count in os.read(read, 100).split()]


def test_memory_that_others_took_in_the_child_is_theirs(tmp_path: pathlib.Path) -> None:
    source, library = tmp_path / "takes_memory.c", tmp_path / "takes_memory.so"
    source.write_text(TAKES_MEMORY)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    assert in_process(handlers_of_others, arguments=(str(library),)) == [0, 0]
