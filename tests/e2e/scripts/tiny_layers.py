"""A hundred tiny layers, whose recording costs several percent of a step; one of them is slow while a file is there.

Arguments: the file; steps. Trains on every rank that torchrun starts.
"""

import os
import sys
import time

import torch
from torch import nn

slow, steps = sys.argv[1], int(sys.argv[2])


class Sometimes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if os.path.exists(slow):
            time.sleep(0.05)
        return x


torch.set_num_threads(1)
torch.manual_seed(0)
model: nn.Module = nn.Sequential(*(part for _ in range(50) for part in (nn.Linear(16, 16), nn.ReLU())), Sometimes())
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.randn(8, 16)
for _ in range(steps):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
if "RANK" in os.environ:
    torch.distributed.destroy_process_group()
