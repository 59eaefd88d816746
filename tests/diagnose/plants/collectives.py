"""Collectives of two ranks: gradients reduced in each micro step, many small ones, a barrier in every step, tokens of which one
rank gets most, one that takes long."""

from __future__ import annotations

import contextlib
import time

import common
import torch
import torch.distributed as dist
from torch import nn

args = common.arguments("micro", "small", "barrier", "uneven", "stalled")
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
    elif args.plant == "uneven":
        # Of each rank's 512 tokens the second rank gets 256 and more.
        few = int(256 * (1 - 0.9 * args.strength))
        counts = [few, 512 - few]
        taken = torch.empty(2 * counts[rank], 256)
        dist.all_to_all_single(taken, torch.randn(512, 256), [counts[rank]] * 2, counts)
    elif args.plant == "stalled" and step == args.steps // 2 and rank == 1:
        time.sleep(1.5 + args.strength)
    optimizer.step()
common.leave(world)
