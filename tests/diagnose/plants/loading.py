"""Batches: made in the loop, by too few workers, by more workers than there are processors, by workers that start anew each
epoch, by workers of which one is slow, with a sample now and then that takes long to load, in batches that take unequally long,
by workers that keep what they have loaded, or by workers that begin slowly."""

from __future__ import annotations

import random
import time

import common
import torch
from torch import nn
from torch.utils.data import DataLoader, get_worker_info

args = common.arguments("inline", "starved", "restart", "heavy", "crowd", "worker", "unequal", "hoard", "begin")
torch.set_num_threads(1)
batch = 16
per_epoch = 24 if args.plant == "restart" else args.steps
seconds = {"inline": 0.001, "starved": 0.0025}.get(args.plant, 0.0) * args.strength
workers = {"inline": 0, "starved": 1, "crowd": 12}.get(args.plant, 2)
heavy = set(random.Random(7).sample(range(batch * per_epoch), per_epoch // 20)) if args.plant == "heavy" else set()


#: With `hoard`: what a worker has kept.
kept: list[bytes] = []


class Samples(common.Samples):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index in heavy:
            time.sleep(0.4 * args.strength)
        if args.plant == "worker" and get_worker_info().id == 1:
            time.sleep(0.004 * args.strength)
        if args.plant == "unequal" and index % (11 * batch) == 0:
            time.sleep(0.15 * args.strength)
        if args.plant == "hoard":
            kept.append(bytes(range(256)) * round(100 * args.strength))
        if args.plant == "crowd":
            common.burn(0.004 * args.strength)
        return super().__getitem__(index)


def begin(_: int) -> None:
    """Opens what a worker reads from."""
    time.sleep(40 * args.strength)


net = common.model()
optimizer = torch.optim.AdamW(net.parameters())
loader = DataLoader(
    Samples(batch * per_epoch, seconds=seconds),
    batch_size=batch,
    num_workers=workers,
    persistent_workers=workers > 0 and args.plant != "restart",
    prefetch_factor=4 if workers else None,
    worker_init_fn=begin if args.plant == "begin" else None,
)
done = 0
while done < args.steps:
    for x, y in loader:
        optimizer.zero_grad()
        for _ in range(3):
            loss = nn.functional.cross_entropy(net(x.repeat(4, 1)), y.repeat(4))
            loss.backward()
        optimizer.step()
        done += 1
