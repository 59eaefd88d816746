"""Growth: memory that is kept, steps that become slower, little by little or all at once, and a loss that rises."""

from __future__ import annotations

import common
import torch
from torch import nn

args = common.arguments("leak", "slower", "since", "rising")
torch.set_num_threads(1)
net = common.model()
optimizer: torch.optim.Optimizer = torch.optim.AdamW(net.parameters())
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
    elif args.plant == "since" and step >= args.steps * 0.6:
        common.burn(0.006 * args.strength)
    elif args.plant == "rising":
        import probe_agent

        probe_agent.log(loss=loss.item())
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 if step < args.steps / 6 else 0.1 * args.strength
