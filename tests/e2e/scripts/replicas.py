"""Two replicas under DDP, on data of their own each, until rank 0's standard input ends. They know nothing of probe.

The argument is a file that the ranks meet by. Prints how many steps there were and what the weights are,
to the last bit: the same on both ranks.
"""

import hashlib
import os
import select
import sys
import time
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
torch.set_num_threads(1)
rank = int(os.environ["RANK"])
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)


def digest(model: nn.Module) -> str:
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


def is_over() -> bool:
    over = torch.tensor(float(real % 20 == 0 and rank == 0 and bool(select.select([0], [], [], 0)[0])))
    if real % 20 == 0:
        torch.distributed.broadcast(over, 0)
    return over.item() > 0


torch.manual_seed(1)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = torch.randn(64, 16, 8, generator=torch.Generator().manual_seed(rank))
real = 0
# In one call, here and at the end: ranks share a file, and print writes a line in pieces where output is not buffered.
print("ready\n", end="", flush=True)
while not is_over():
    loss = (model(data[real % 64]) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    real += 1
    time.sleep(0.005)
torch.distributed.barrier()
print(f"{real} {digest(model)}\n", end="", flush=True)
torch.distributed.destroy_process_group()
