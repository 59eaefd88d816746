"""What the agent of a process does and which processes have one, once torch is there: programs that train."""

from __future__ import annotations

import pathlib

import pytest
from activation_support import TRAIN, Bench
from recording_support import HOOKS_OF_GROUPS


@pytest.fixture
def bench(tmp_path: pathlib.Path) -> Bench:
    return Bench(tmp_path, quick=True)


def test_torch_alone_does_not_connect_and_training_does(bench: Bench) -> None:
    code = (
        TRAIN
        + """
import threading, probe_agent
print(probe_agent.status()["phase"], threading.active_count())
train(1)
status = probe_agent.status()
print(status["phase"], status["enabled"], status["step"], status["layers"]["forward"])
import os, time
deadline, found = time.monotonic() + 60, None
# A thread sets its own name, and may take a while to do so.
while found is None and time.monotonic() < deadline:
    for task in os.listdir("/proc/self/task"):
        try:
            if open(f"/proc/self/task/{task}/comm").read().strip() == "probe-uplink":
                found = next(l for l in open(f"/proc/self/task/{task}/status") if l.startswith("SigBlk"))
        except (FileNotFoundError, ProcessLookupError):  # Some other thread that has just ended.
            pass
# Every signal that can be blocked, except the two that threads themselves use.
print(int(found.split()[1], 16) | 1 << 31 | 1 << 32 | 1 << 8 | 1 << 18 == (1 << 64) - 1)
"""
    )
    assert bench.python(code, PROBE="1").splitlines() == [
        "waiting for training 1",
        "connecting True 1 tp_call",
        "True",
    ]
    # No collector listens: that is reported once, and training went on.
    assert bench.errors.count("probe: ") == 1 and bench.errors.count("nobody.sock") == 1


def test_a_program_that_waits_for_all_its_threads_ends(bench: Bench) -> None:
    code = (
        TRAIN
        + """
import threading
train(1)
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
print(threading.active_count())
"""
    )
    assert bench.python(code, PROBE="1") == "1\n"
    assert "nobody.sock" in bench.errors


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_are_not_agents(bench: Bench, method: str) -> None:
    code = """
import os, sys, torch
class Data(torch.utils.data.Dataset):
    def __init__(self): self.layer = None
    def __len__(self): return 4
    def __getitem__(self, i):
        if self.layer is None: self.layer = torch.nn.Linear(1, 1)
        self.layer(torch.ones(1))  # a worker may call modules without training
        native = sys.modules.get("probe_agent._native")
        enabled = native is not None and native.status()["enabled"]
        threads = []
        for task in os.listdir("/proc/self/task"):
            try:
                threads.append(open(f"/proc/self/task/{task}/comm").read().strip())
            except (FileNotFoundError, ProcessLookupError):  # It has just ended.
                pass
        return torch.tensor([int(enabled), int("probe-uplink" in threads)])
if __name__ == "__main__":
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    loader = torch.utils.data.DataLoader(Data(), num_workers=2, multiprocessing_context="METHOD")
    model(torch.ones(1, 2)).sum().backward(); optimizer.step()
    for batch in loader:
        seen.append(batch.flatten().tolist())
        model(batch.float()).sum().backward(); optimizer.step()
    import probe_agent
    print(seen, probe_agent.status()["phase"], probe_agent.status()["step"])
""".replace("METHOD", method)
    assert bench.python(code, PROBE="1") == "[[0, 0], [0, 0], [0, 0], [0, 0]] connecting 5\n"


def test_a_spawned_process_that_joins_a_group_is_an_agent(bench: Bench) -> None:
    code = """
import os, torch
import torch.distributed as dist
import torch.multiprocessing as mp
def rank(rank, file):
    torch.nn.Linear(1, 1)(torch.ones(1))
    import probe_agent
    before = probe_agent.status()["phase"]
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    said = [str(rank), before, probe_agent.status()["phase"], probe_agent.status()["layers"]["collectives"]]
    # One write: two processes share the pipe.
    os.write(1, (" ".join(said) + "\\n").encode())
    dist.barrier()
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(rank, (os.path.abspath("rendezvous"),), nprocs=2)
""".replace('"rendezvous"', repr(str(bench.directory / "rendezvous")))
    collectives = "pg_hooks" if HOOKS_OF_GROUPS else "patched-functions"
    lines = bench.python(code, PROBE="1").splitlines()
    # The gloo of torch 2.8 says on stdout that it is connected.
    lines = sorted(line for line in lines if not line.startswith("[Gloo]"))
    assert lines == [f"{rank} off connecting {collectives}" for rank in (0, 1)]


def test_a_spawned_process_that_joins_rpc_is_an_agent(bench: Bench) -> None:
    code = """
import os
import torch.multiprocessing as mp
from torch.distributed import rpc
def worker(rank, file):
    import probe_agent
    before = probe_agent.status()["phase"]
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{file}")
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    os.write(1, f"{rank} {before} {probe_agent.status()['phase']}\\n".encode())
    rpc.shutdown()
if __name__ == "__main__":
    mp.spawn(worker, (os.path.abspath("rendezvous"),), nprocs=2)
""".replace('"rendezvous"', repr(str(bench.directory / "rendezvous")))
    lines = bench.python(code, PROBE="1").splitlines()
    lines = sorted(line for line in lines if not line.startswith("[Gloo]"))
    assert lines == [f"{rank} off waiting for training" for rank in (0, 1)]


def test_a_forked_child_runs_nothing_of_ours_until_it_trains(bench: Bench) -> None:
    code = (
        TRAIN
        + """
import os, sys, probe_agent
from probe_agent import _native
train(2)
def fork(work):
    child = os.fork()
    if child == 0:
        assert probe_agent.status()["phase"] == "forked" and not probe_agent.status()["enabled"]
        work()
        # Without flushing, for which there is no collector.
        sys.exit(0) if work is ends else os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
def ends():
    # Flushing at exit would wait for a thread that is not here.
    _native.stop = lambda *_: os.write(1, b"flushed ")
    model(torch.ones(2, 4)); probe_agent.stop()
    assert probe_agent.status()["phase"] == "forked" and not probe_agent.status()["enabled"]
def trains():
    probe_agent.configure(detail="off")
    train(2)
    status = probe_agent.status()
    assert status["phase"] == "connecting" and status["step"] == 2 and status["config"]["detail"] == "off", status
def starts():
    probe_agent.start(detail="every-step")
    assert probe_agent.status()["config"]["detail"] == "every-step" and probe_agent.status()["step"] == 0
    train(1)
    assert probe_agent.status()["step"] == 1
def marks():
    probe_agent.step()
    assert probe_agent.status()["phase"] == "connecting" and probe_agent.status()["step"] == 1
def watches():
    for _ in probe_agent.watch([1, 2]):
        train(1)
    assert probe_agent.status()["step"] == 2
fork(ends); fork(trains); fork(starts); fork(marks); fork(watches)
train(1)
print(probe_agent.status()["step"], probe_agent.status()["config"]["detail"])
probe_agent.stop()
def stays_off():
    train(1)
    assert probe_agent.status()["phase"] == "forked" and not probe_agent.status()["enabled"]
fork(stays_off)
"""
    )
    assert bench.python(code, PROBE="1") == "3 auto\n"


def test_a_program_can_start_configure_and_stop_it(bench: Bench) -> None:
    code = (
        """
import probe_agent
print(probe_agent.status()["phase"])
probe_agent.start(detail="off")
print(probe_agent.status()["phase"], probe_agent.status()["config"]["detail"])
"""
        + TRAIN
        + """
print(probe_agent.status()["phase"])
train(2)
probe_agent.configure(detail="every-step")
try:
    probe_agent.configure(detail="sometimes")
except ValueError as error:
    print(error)
probe_agent.step()
print(probe_agent.status()["config"]["detail"], probe_agent.status()["step"])
probe_agent.stop()
print(probe_agent.status()["phase"], probe_agent.status()["enabled"])
train(2)
probe_agent.start()
train(1)
print(probe_agent.status()["phase"], probe_agent.status()["step"], probe_agent.__version__.count("."))
"""
    )
    assert bench.python(code).splitlines() == [
        "off",
        "waiting for torch off",
        "connecting",
        "detail cannot be 'sometimes'; it can be auto, every-step, 1/N, off",
        "every-step 3",
        "ended False",
        "connecting 4 2",
    ]


def test_started_after_training_has_begun(bench: Bench) -> None:
    code = (
        TRAIN
        + """
import probe_agent
train(3)
probe_agent.start()
train(2)
print(probe_agent.status()["step"], probe_agent.status()["phase"])
"""
    )
    assert bench.python(code) == "2 connecting\n"


def test_probe_0_wins_over_what_a_program_calls(bench: Bench) -> None:
    code = TRAIN + "import probe_agent\nprobe_agent.start()\ntrain(1)\nprint(probe_agent.status()['phase'])"
    assert bench.python(code, PROBE="0") == "off\n"


def test_a_wrong_address_is_said_and_training_goes_on(bench: Bench) -> None:
    code = TRAIN + "train(1)\nimport probe_agent\nprint(probe_agent.status()['step'], probe_agent.status()['problem'])"
    out = bench.python(code, PROBE="1", PROBE_COLLECTOR="nonsense")
    assert "neither unix:PATH nor HOST:PORT" in out and out.startswith("1 ")
    assert bench.errors.count("probe: ") == 1 and "hint:" in bench.errors


def test_snippets_beside_training_cannot_train(bench: Bench) -> None:
    code = (
        TRAIN
        + """
train(1)
import threading
from probe_agent import _native
def beside():
    _native.thread_mode(_native.ThreadMode.BESIDE)
    for what in (lambda: model(torch.ones(1, 4)), optimizer.step):
        try:
            what()
            print("trained")
        except RuntimeError as error:
            print(error)
    with torch.no_grad():
        print(model(torch.ones(1, 4)).shape)
thread = threading.Thread(target=beside)
thread.start()
thread.join()
"""
    )
    first, second, third = bench.python(code, PROBE="1").splitlines()
    assert "must not train" in first and "--at step" in first and first == second
    assert third == "torch.Size([1, 1])"
