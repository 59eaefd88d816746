"""Two ranks, of which the second is slow in one part of its steps, or has more samples, or other gradients."""

from __future__ import annotations

import random
import time

import common
import torch
from torch import nn
from torch.utils.data import DataLoader

args = common.arguments("data", "forward", "backward", "other", "more", "lengths", "norms")
torch.set_num_threads(1)
rank, world = common.ranks()
extra = 0.012 * args.strength if rank == 1 else 0.0


class Slow(torch.autograd.Function):
    """Takes its time on the way back."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        time.sleep(extra)
        return grad


class Block(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.linear = nn.Linear(256, 256)

    def forward(self, x):
        if self.number == 2 and args.plant == "forward":
            time.sleep(extra)
        x = torch.relu(self.linear(x))
        return Slow.apply(x) if self.number == 2 and args.plant == "backward" else x


torch.manual_seed(0)
net = common.parallel(nn.Sequential(*(Block(number) for number in range(4)), nn.Linear(256, 10)), world)
optimizer = torch.optim.AdamW(net.parameters())
size = round(64 * (1 + 15 * args.strength)) if rank == 1 and args.plant == "more" else 64
samples = common.Samples(size * args.steps, seconds=extra / 64 if args.plant == "data" else 0.0)
rng = random.Random(rank)
loader = DataLoader(samples, batch_size=size)
for x, y in loader:
    if args.plant == "lengths":
        # Like sequences of different length: each rank has the longest one now and then.
        times = 1 + rng.randrange(1 + round(15 * args.strength))
        x, y = x.repeat(times, 1), y.repeat(times)
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    if args.plant == "norms":
        if rank == 1:
            for parameter in net.parameters():
                parameter.grad *= 1 + args.strength
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    if args.plant == "other":
        time.sleep(extra)
common.leave(world)
