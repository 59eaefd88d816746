"""Trains alone, and ends in a way of its choosing in the middle of a step.

forward STEPS DIRECTORY END     in the third block of four, in step STEPS
backward STEPS DIRECTORY END    in the backward pass of the third block
collective STEPS DIRECTORY END  rank 0 waits in an all_reduce that rank 1 never enters

END is kill (it waits until somebody does that, once there is a file ``there``) or segfault.
"""

import ctypes
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

WHERE, STEPS, DIRECTORY, END = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
BLOCKS, MIDDLE = 4, 2


def say_there() -> None:
    written = os.path.join(DIRECTORY, "there.new")
    with open(written, "w") as file:
        file.write(str(os.getpid()))
    os.rename(written, os.path.join(DIRECTORY, "there"))


def end() -> None:
    """Nothing is recorded between the last record and the end of the process."""
    say_there()
    if END == "segfault":
        ctypes.string_at(0)
    while True:
        time.sleep(3600)


class Stop(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor, block: "Block") -> torch.Tensor:
        ctx.block = block
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if ctx.block.ends == "backward":
            end()
        return gradient, None


class Block(nn.Module):
    ends = ""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        if self.ends == "forward":
            end()
        return Stop.apply(x, self)


def wait_in_collective() -> None:
    """Says so once the all_reduce has been issued; the other rank waits for the end of the process group."""
    rank = dist.get_rank()
    if rank == 1:
        time.sleep(3600)
    else:
        work = dist.all_reduce(torch.ones(4), async_op=True)
        say_there()
        work.wait()


def train() -> None:
    if WHERE == "collective":
        dist.init_process_group("gloo")
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(STEPS + 1):
        while step == STEPS and not os.path.exists(os.path.join(DIRECTORY, "go")):
            time.sleep(0.05)
        model[MIDDLE].ends = WHERE if step == STEPS else ""
        if WHERE == "collective" and step == STEPS:
            wait_in_collective()
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    torch.set_num_threads(1)
    train()
