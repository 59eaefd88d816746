"""What the recorded agents trained: six steps with a DataLoader, a collective and a named range. No file of a machine's
own is to be in what is recorded, so it is run by ``python -c``."""

import torch
import torch.distributed as dist
from torch import nn

torch.manual_seed(0)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(torch.randn(24, 8), batch_size=4):
    with torch.profiler.record_function("loss"):
        loss = model(batch).square().mean()
    loss.backward()
    dist.all_reduce(loss.detach())
    optimizer.step()
    optimizer.zero_grad()
