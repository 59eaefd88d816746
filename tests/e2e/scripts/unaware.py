"""Trains with a DataLoader, dropout and workers' worth of Python, and knows nothing of probe. Prints every hundredth loss to
the last bit; on until standard input ends, or for so many steps. Then prints which hooks are left in torch."""

import os
import select
import sys
import threading
import time
import warnings

import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

warnings.simplefilter("ignore")
limit = int(sys.argv[1]) if len(sys.argv) > 1 else 0
distributed = "RANK" in os.environ
if distributed:
    torch.distributed.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(3)


def patched() -> dict:
    """The functions that the agent may replace."""
    return {
        "call": nn.Module.__dict__.get("__init_subclass__"),
        "engine": torch.autograd.graph._engine_run_backward,
        "next": _BaseDataLoaderIter.__next__,
        "hook": sys.excepthook,
        "profile": torch.optim.Optimizer.profile_hook_step,
        "wait": torch.distributed.Work.wait,
    }


before = patched()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.drop, self.down = nn.Linear(16, 32), nn.Dropout(0.3), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.drop(torch.relu(self.up(x))))


model = nn.Sequential(Block(), Block(), nn.Linear(16, 1))
trained = nn.parallel.DistributedDataParallel(model) if distributed else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(4096, 16)), batch_size=8, shuffle=True)
step = 0


def is_over() -> bool:
    if limit:
        return step >= limit
    over = step % 20 == 0 and bool(select.select([0], [], [], 0)[0])
    if distributed and step % 20 == 0:
        says = torch.tensor(float(over))
        torch.distributed.all_reduce(says)
        over = says.item() > 0
    return over


print("ready", flush=True)
while not is_over():
    for (x,) in loader:
        optimizer.zero_grad()
        loss = trained(x + torch.randn_like(x) * 0.1).square().mean()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 100 == 0:
            print(step, loss.item().hex(), flush=True)
        if is_over():
            break
    # An optimizer of another class begins and ends, so that its step is wrapped while a collector is attached.
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


def threads_left() -> list:
    """Names of threads beside the main one, of Python and of the agent."""
    found = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as file:
                found += [name for name in [file.read().strip()] if name.startswith("probe")]
        except (FileNotFoundError, ProcessLookupError):  # It has just ended.
            pass
    return found


after = patched()
left = [name for name in before if before[name] is not after[name]]
left += ["optimizer hooks"] * bool(optimizers._global_optimizer_pre_hooks or optimizers._global_optimizer_post_hooks)
left += ["step"] * ("__probe_inner__" in torch.optim.SGD.step.__dict__)
# A thread that said goodbye for the agent may be about to end.
deadline = time.monotonic() + 20
while threads_left() and time.monotonic() < deadline:
    time.sleep(0.01)
left += threads_left()
print("steps", step, flush=True)
print("left", *left, flush=True)
