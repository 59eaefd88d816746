"""Settings of two ranks: parameters that DistributedDataParallel looks for, buffers that it broadcasts, numbers of threads that differ,
and a neighbour on the processor of the second."""

from __future__ import annotations

import os
import subprocess
import sys

import common
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

args = common.arguments("unused", "buffers", "threads", "neighbour")
rank, world = common.ranks()
torch.set_num_threads(2 if args.plant == "threads" and rank == 1 else 1)


class Scaled(nn.Module):
    """Has statistics, as BatchNorm has."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self.register_buffer("mean", torch.zeros(int(2_000_000 * args.strength) if args.plant == "buffers" else 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x - self.mean[:256])


neighbours: list[subprocess.Popen[bytes]] = []
processors = sorted(os.sched_getaffinity(0))
if args.plant == "neighbour" and world > 1:
    os.sched_setaffinity(0, {processors[rank % len(processors)]})
    if rank == 1:
        busy = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(10000))"
        neighbours = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(max(1, round(2 * args.strength)))]

torch.manual_seed(0)
layers = 20 if args.plant == "unused" else 4
net = Scaled(common.model(256, layers))
replica = DistributedDataParallel(
    net, find_unused_parameters=args.plant == "unused", broadcast_buffers=args.plant == "buffers"
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
samples = common.Samples(1 << 20)
for step in range(args.steps):
    rows = torch.arange(step * 64, step * 64 + 64) % 512
    optimizer.zero_grad()
    nn.functional.cross_entropy(replica(samples.x[rows]), samples.y[rows]).backward()
    optimizer.step()
for neighbour in neighbours:
    neighbour.kill()
dist.destroy_process_group()
