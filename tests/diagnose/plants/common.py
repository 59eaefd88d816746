"""Shared parts of the planted programs: a small model, its batches, and ways to spend time."""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset


def arguments(*plants: str) -> argparse.Namespace:
    """--plant is what is wrong (nothing, where it is left out), --strength how much of a step it takes, of 1."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plant", choices=["none", *plants], default="none")
    parser.add_argument("--strength", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=240)
    return parser.parse_args()


def model(width: int = 256, layers: int = 4) -> nn.Module:
    """About 2 ms a step on one core with a batch of 64."""
    torch.manual_seed(0)
    blocks: list[nn.Module] = []
    for _ in range(layers):
        blocks += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*blocks, nn.Linear(width, 10))


class Samples(Dataset):
    """Random samples; each takes `seconds` to make."""

    def __init__(self, count: int, width: int = 256, seconds: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(512, width, generator=generator)
        self.y = torch.randint(0, 10, (512,), generator=generator)
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.seconds:
            time.sleep(self.seconds)
        return self.x[index % 512], self.y[index % 512]


def burn(seconds: float) -> None:
    """Computes for so long by the thread's own clock, so that neighbours on the machine do not shorten it."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(200))


def ranks() -> tuple[int, int]:
    """Joins the group where there are several ranks; which one this is, and how many there are."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    return int(os.environ.get("RANK", "0")), world


def parallel(net: nn.Module, world: int) -> nn.Module:
    return DistributedDataParallel(net) if world > 1 else net


def leave(world: int) -> None:
    if world > 1:
        dist.destroy_process_group()
