"""Collectives of two ranks: gradients reduced in each micro step, many small ones, a barrier in every step."""

from __future__ import annotations

import contextlib

import common
import torch
import torch.distributed as dist
from torch import nn

args = common.arguments("micro", "small", "barrier")
torch.set_num_threads(1)
rank, world = common.ranks()
micro_steps = 4
width = 512 if args.plant == "micro" else 256
net = common.parallel(common.model(width), world)
plain = net.module if args.plant == "small" and world > 1 else net
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
samples = common.Samples(1 << 20, width)
for step in range(args.steps):
    optimizer.zero_grad()
    for micro in range(micro_steps):
        rows = torch.arange(step * 64, step * 64 + 16) % 512
        last = micro == micro_steps - 1
        wait = world > 1 and plain is net and not last and args.plant != "micro"
        with net.no_sync() if wait else contextlib.nullcontext():
            nn.functional.cross_entropy(plain(samples.x[rows]), samples.y[rows]).backward()
    if plain is not net:
        for parameter in net.parameters():
            for piece in parameter.grad.flatten().split(max(1, int(16384 / args.strength))):
                dist.all_reduce(piece)
    if args.plant == "barrier":
        dist.barrier()
    optimizer.step()
common.leave(world)
