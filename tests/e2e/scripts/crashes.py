"""Ranks that train until the last of them ends in a way of its choosing, after some steps and once there is a file go in the
given directory.

kill        it kills itself, as the kernel would
saved       it saves a checkpoint and kills itself
segfault    it reads where nothing is
exit        it ends at once with status 3, past everything that the interpreter does at its end
raise       nobody catches an exception
thread      nobody catches an exception in a thread, and the process goes on to a good end
hook        nobody catches an exception, and the program's own hook ends the process at once
memory      it asks the host for more memory than there is, in a module, and nobody catches that
oom         the kernel kills it, because it takes more memory than the control group may that is named in CONTROL_GROUP
device      a device has no memory left, in the first step; the device is none, and what it has is counted by modules
worker      a forked process that has its connection stands still when it is killed
normal      it goes on to a good end
"""

import ctypes
import os
import signal
import sys
import threading
import time

import probe_agent
import torch
import torch.distributed as dist
from torch import nn


class Greedy(nn.Module):
    greedy = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.greedy:
            torch.empty(1 << 55, dtype=torch.uint8)
        return x


class Keeping(nn.Module):
    """Keeps memory of a device that has a hundred megabytes."""

    held = 0

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        self.bytes = megabytes * 1_000_000

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if Keeping.held + self.bytes > 100_000_000:
            raise torch.OutOfMemoryError("CUDA out of memory")
        Keeping.held += self.bytes
        return x


def pretend_a_device() -> None:
    def statistics(device: int) -> dict:
        both = {"all": {"current": Keeping.held, "peak": Keeping.held}}
        return {"allocated_bytes": both, "reserved_bytes": both, "num_alloc_retries": 0, "num_ooms": 0}

    torch._C._cuda_memoryStats, torch._C._cuda_getDevice = statistics, lambda: 0
    torch.cuda._initialized, torch.cuda.device_count, torch.version.cuda = True, lambda: 1, "13.0"


def run_out_of_memory() -> None:
    pretend_a_device()
    model = nn.Sequential(Keeping(20), nn.Sequential(Keeping(50), Keeping(10)), Keeping(30))
    # Not before there is a device.
    probe_agent.start()
    model(torch.ones(2, 8))


def wait_for_file(name: str) -> None:
    while not os.path.exists(os.path.join(sys.argv[3], name)):
        time.sleep(0.05)


def end(how: str, model: nn.Module) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "saved":
        torch.save(model.state_dict(), os.path.join(sys.argv[3], "last.pt"))
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(3)
    elif how in ("raise", "hook"):
        raise ValueError("a batch of 7")
    elif how == "thread":
        thread = threading.Thread(target=lambda: [][1], name="loader")
        thread.start()
        thread.join()
    elif how == "memory":
        model[1].greedy = True
        model(torch.ones(2, 8))
    elif how == "oom":
        taken = []
        while True:
            taken.append(b"x" * (1 << 20))
    elif how == "worker":
        if os.fork() == 0:
            wait_for_file("leave")
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)


def train(how: str, steps: int) -> None:
    dist.init_process_group("gloo")
    odd = dist.get_rank() == dist.get_world_size() - 1
    model = nn.Sequential(nn.Linear(8, 8), Greedy(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(steps + 1):
        if odd and step == steps:
            wait_for_file("go")
            end(how, model)
        with probe_agent.span("train_step"):
            loss = model(torch.ones(2, 8)).sum()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
        probe_agent.log(loss=loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "hook":
        sys.excepthook = lambda *_: os._exit(7)
    if sys.argv[1] == "oom":
        # Only what it takes from here on counts, so without torch.
        with open(os.path.join(os.environ["CONTROL_GROUP"], "cgroup.procs"), "w") as members:
            members.write(str(os.getpid()))
    if sys.argv[1] == "device":
        run_out_of_memory()
    train(sys.argv[1], int(sys.argv[2]))
