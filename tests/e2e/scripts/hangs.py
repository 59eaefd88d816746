"""Two or more gloo ranks that train, and of which the last gets stuck in a way of its choosing after some steps.

missing     the last rank waits for a line that never comes, and does not enter the all_reduce of the others
mismatched  the others all_reduce, the last one all_gathers
message     it sends the first rank nothing more, which receives 64 numbers each step
early       before the first step it sends the first rank 64 numbers, and gets stuck as in missing
loader      its DataLoader gives no batch any more
lock        it waits for a lock that nobody gives back
deadlock    it all_reduces on one group, and the others on another one
gil         it is in C code that keeps the GIL
late        it opens a named pipe that is given, which takes until somebody writes to it, and goes on
validates   it is no hang: it validates until there is a file of a name that is given
"""

import ctypes
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Batches(Dataset):
    def __init__(self, how: str, stuck_at: int) -> None:
        self.how, self.stuck_at = how, stuck_at

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.how == "loader" and index == self.stuck_at:
            wait_for_a_line()
        return torch.ones(8)


def wait_for_a_line() -> None:
    os.read(os.pipe()[0], 1)


def stand_still(how: str) -> None:
    if how in ("missing", "message", "early"):
        wait_for_a_line()
    elif how == "mismatched":
        dist.all_gather([torch.ones(8) for _ in range(dist.get_world_size())], torch.ones(8))
    elif how == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif how == "late":
        open(sys.argv[3]).close()
    elif how == "gil":
        ctypes.PyDLL(None).sleep(3600)


def validate(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        for batch in DataLoader(Batches("", -1), batch_size=None):
            model(batch)
            time.sleep(0.01)
            if os.path.exists(sys.argv[3]):
                break
    model.train()


def train(how: str, steps: int) -> None:
    dist.init_process_group("gloo")
    other = dist.new_group()
    odd = dist.get_rank() == dist.get_world_size() - 1
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step, batch in enumerate(DataLoader(Batches(how if odd else "", steps), batch_size=None)):
        if odd and step == steps:
            stand_still(how)
        if step == steps and how == "validates" and odd:
            validate(model)
        if step == steps + 10 and how == "validates":
            break
        if step == steps and how == "deadlock" and not odd:
            dist.all_reduce(torch.ones(8), group=other)
        has_message = how == "message" or (how == "early" and step == 0)
        if has_message and odd:
            dist.send(torch.ones(64), 0)
        if has_message and dist.get_rank() == 0:
            dist.recv(torch.empty(64))
        loss = model(batch).sum()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "missing":
        # Without tests/quick_start the optimizer would import it.
        import torch._inductor
    train(sys.argv[1], int(sys.argv[2]))
