"""Growth: memory that is kept, and steps that become slower."""

from __future__ import annotations

import common
import torch
from torch import nn

args = common.arguments("leak", "slower")
torch.set_num_threads(1)
net = common.model()
optimizer = torch.optim.AdamW(net.parameters())
samples = common.Samples(1 << 20)
kept: list[torch.Tensor] = []
for step in range(args.steps):
    rows = torch.arange(step * 64, step * 64 + 64) % 512
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(samples.x[rows]), samples.y[rows])
    loss.backward()
    optimizer.step()
    if args.plant == "leak":
        kept.append(torch.ones(int(250_000 * args.strength)))  # 1 MB
    elif args.plant == "slower":
        common.burn(step / args.steps * 0.01 * args.strength)
